"""Latents in 8-bit records: approximate, each token by itself."""

from dataclasses import dataclass
from typing import ClassVar

from kvchat.engine.api.cache_format import SideFormat
from kvchat.engine.formats.latent.spec import LatentSpec
from kvchat.engine.formats.spec import CacheSpec, StoredLayer
from kvchat.engine.kernels.fp8_record import Fp8Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8LatentSpec(LatentSpec):
    """A latent layer whose rows are packed into 8-bit records of `head_dim_k` bytes; see `Fp8Record`.

    A record follows from its own token alone, so the last block of a sequence is packed like all others.
    """

    kind: ClassVar[str] = "latent fp8"
    is_exact: ClassVar[bool] = False

    @property
    def record(self) -> Fp8Record:
        return Fp8Record(self.rank, self.rope_dim)


def fp8_layer(spec: CacheSpec, form: SideFormat, block_size: int) -> StoredLayer:
    """Return what is stored of a latent layer in 8 bits."""
    assert isinstance(spec, LatentSpec)
    record = Fp8Record(spec.rank, spec.rope_dim)
    return StoredLayer(
        Fp8LatentSpec(
            num_kv_heads=1,
            head_dim_k=record.num_bytes,
            head_dim_v=0,
            dtype="U8",
            rank=spec.rank,
            rope_dim=spec.rope_dim,
            rope_layout=spec.rope_layout,
        )
    )
