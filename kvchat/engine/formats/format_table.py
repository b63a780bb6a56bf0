"""Table of backends: how each kind of layer attends, what a step tells it, and how its blocks are read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.attention_metadata import AttentionCall, AttentionMetadata, LayerPool, LayerStep
from kvchat.engine.formats.chunked.spec import ChunkedSpec
from kvchat.engine.formats.fp8_latent.attend import Fp8LatentAttention
from kvchat.engine.formats.fp8_latent.codec import Fp8LatentCodec
from kvchat.engine.formats.fp8_latent.spec import Fp8LatentSpec
from kvchat.engine.formats.full.attend import FullAttention, FullMetadataBuilder
from kvchat.engine.formats.full.codec import Codec
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.latent.attend import LatentAttention, UpProjection
from kvchat.engine.formats.latent.spec import LatentSpec
from kvchat.engine.formats.pruned.attend import PrunedAttention, PrunedMetadataBuilder
from kvchat.engine.formats.pruned.spec import PrunedSpec
from kvchat.engine.formats.quantized.attend import QuantizedMetadataBuilder, ResidualAttention
from kvchat.engine.formats.quantized.codec import QuantizedCodec
from kvchat.engine.formats.quantized.spec import QuantizedSpec, ResidualSpec
from kvchat.engine.formats.recurrent.codec import StateCodec
from kvchat.engine.formats.recurrent.parts import StateMetadataBuilder
from kvchat.engine.formats.recurrent.spec import StateSpec
from kvchat.engine.formats.shadow.attend import ShadowAttention, ShadowMetadataBuilder
from kvchat.engine.formats.shadow.shadows import Shadows
from kvchat.engine.formats.shadow.spec import ShadowSpec
from kvchat.engine.formats.sliding.spec import SlidingSpec
from kvchat.engine.formats.spec import CacheSpec, Group
from kvchat.engine.formats.window.attend import WindowMetadataBuilder
from kvchat.engine.formats.window.spec import WindowSpec
from kvchat.engine.kernels.paged_attention.args import KVPair


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What formats need of an engine besides their own group.

    Args:
        layers: the pools of all layers, for those that change blocks after a step; None: none is changed.
        shadows: through which long contexts are looked at; None: no sequence has one.
    """

    layers: Mapping[int, LayerPool] | None = None
    shadows: Shadows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One kind of layer.

    Args:
        attention: makes the attention of a layer, of its pool and what its model projects latents with.
        metadata: makes what builds the metadata of a group's steps.
        codec: makes what reads and writes its blocks as numbers.
        is_fused: whether passes that attend by themselves, fused and layerwise ones, know what this stores.
    """

    attention: Callable[[LayerPool, Any], FullAttention] = lambda pool, _: FullAttention(pool)
    metadata: Callable[[Group, int, Resources], FullMetadataBuilder] = lambda group, size, _: (
        FullMetadataBuilder(group, size)
    )
    codec: Callable[[Any], Codec] = lambda _: Codec()
    is_fused: bool = False


_BACKENDS: dict[type[CacheSpec], Backend] = {
    **dict.fromkeys((FullSpec, SlidingSpec, ChunkedSpec), Backend(is_fused=True)),
    LatentSpec: Backend(attention=LatentAttention),
    Fp8LatentSpec: Backend(attention=Fp8LatentAttention, codec=Fp8LatentCodec),
    ResidualSpec: Backend(attention=lambda pool, _: ResidualAttention(pool), is_fused=True),
    QuantizedSpec: Backend(
        metadata=lambda group, size, _: QuantizedMetadataBuilder(group, size),
        codec=QuantizedCodec,
        is_fused=True,
    ),
    WindowSpec: Backend(metadata=lambda group, size, _: WindowMetadataBuilder(group, size), is_fused=True),
    PrunedSpec: Backend(
        attention=lambda pool, _: PrunedAttention(pool),
        metadata=lambda group, size, own: PrunedMetadataBuilder(group, size, own.layers),
        is_fused=True,
    ),
    StateSpec: Backend(
        metadata=lambda group, size, _: StateMetadataBuilder(group, size), codec=StateCodec, is_fused=True
    ),
    ShadowSpec: Backend(
        attention=lambda pool, _: ShadowAttention(pool),
        metadata=lambda group, size, own: ShadowMetadataBuilder(group, size, own.shadows),
        is_fused=True,
    ),
}


def register_backend(kind: type[CacheSpec], backend: Backend) -> None:
    """Add a kind of layer to the table."""
    _BACKENDS[kind] = backend


def codec_of(spec: CacheSpec) -> Codec:
    """Return how blocks of a spec are made of exact ones and read as numbers."""
    return _BACKENDS[type(spec)].codec(spec)


def is_fused(spec: CacheSpec) -> bool:
    """Return whether passes that attend by themselves know what layers of a spec store."""
    return _BACKENDS[type(spec)].is_fused


def metadata_builders(
    groups: Sequence[Group], block_size: int, resources: Resources = Resources()
) -> list[FullMetadataBuilder]:
    """Return what builds the metadata of each group."""
    return [_BACKENDS[type(group.spec)].metadata(group, block_size, resources) for group in groups]


class PagedAttention:
    """Stands behind the attention modules of one model. The runner sets `step` before each forward pass.

    Args:
        layers: the pools of the layers that store something.
        borrowed: layers that attend to what another layer has stored in the same pass, each with that layer.
        projections: of the layers that keep latents.
    """

    def __init__(
        self,
        layers: Mapping[int, LayerPool],
        borrowed: Mapping[int, int] | None = None,
        projections: Mapping[int, UpProjection] | None = None,
    ) -> None:
        latents = projections or {}
        self._layers = {
            layer: _BACKENDS[type(pool.spec)].attention(pool, latents.get(layer))
            for layer, pool in layers.items()
        }
        self._borrowed = borrowed or {}
        self.step: Mapping[GroupId, AttentionMetadata] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Store the new keys and values of `layer`, unless it borrows them, and return [T, H, D_v].

        Args:
            key, value: [T, H_kv, D]; of layers that keep latents, these and rope keys.
        """
        own = self._borrowed.get(layer, layer)
        step = LayerStep(layer, query, KVPair(key, value), call, self.step, own == layer)
        return self._layers[own].attend(step)
