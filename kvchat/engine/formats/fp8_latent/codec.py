"""Latents as 8-bit records: packed from rows of numbers, and unpacked to be compared."""

from collections.abc import Iterator

from torch import Tensor

from kvchat.engine.formats.attention_metadata import LayerPool
from kvchat.engine.formats.fp8_latent.spec import Fp8LatentSpec
from kvchat.engine.formats.full.codec import Codec, slots_of
from kvchat.engine.kernels.latent_record import store_records
from kvchat.engine.kernels.latent_record.reference import unpack


class Fp8LatentCodec(Codec):
    """Codec of latent layers in 8 bits."""

    def __init__(self, spec: Fp8LatentSpec) -> None:
        self._record, self._rank = spec.record, spec.rank

    def copy_blocks(self, target: LayerPool, source: LayerPool, sources: Tensor, targets: Tensor) -> None:
        rows = source.keys[sources].flatten(0, 2)  # [n * P, R + d_r], for one head
        slots = slots_of(targets, source.keys.shape[2])
        store_records(rows[:, : self._rank], rows[:, self._rank :], target.keys, slots, self._record)

    def numbers(self, stored: Tensor, region: str) -> Iterator[Tensor]:
        latents = unpack(stored.view(-1, self._record.num_bytes), self._record)
        yield from latents.tensor_split([self._rank], dim=1)
