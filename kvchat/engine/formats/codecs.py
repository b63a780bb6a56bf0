"""Table of codecs: for each kind of layer that stores something else than numbers, how these are read."""

from collections.abc import Callable
from typing import Any

from kvchat.engine.formats.fp8_latent.codec import Fp8LatentCodec
from kvchat.engine.formats.fp8_latent.spec import Fp8LatentSpec
from kvchat.engine.formats.full.codec import Codec
from kvchat.engine.formats.quantized.codec import QuantizedCodec
from kvchat.engine.formats.quantized.spec import QuantizedSpec
from kvchat.engine.formats.spec import CacheSpec

_CODECS: dict[type[CacheSpec], Callable[[Any], Codec]] = {
    Fp8LatentSpec: Fp8LatentCodec,
    QuantizedSpec: QuantizedCodec,
}


def codec_of(spec: CacheSpec) -> Codec:
    """Return how blocks of a spec are made of exact ones and read as numbers."""
    make = _CODECS.get(type(spec))
    return Codec() if make is None else make(spec)
