"""Latent layers (MLA): one latent and one rope key per token, for all heads."""

from dataclasses import dataclass
from typing import ClassVar

from kvchat.engine.formats.spec import CacheSpec
from kvchat.engine.kernels.attention_shapes import KernelSizes, LatentSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec(CacheSpec):
    """A layer that keeps one latent and one rope key per token for all its heads (MLA).

    Both stand in one row of `head_dim_k` numbers, the latent first; there are no values beside it. Queries
    see every earlier token.

    Args:
        rank: numbers of the latent.
        rope_dim: numbers of the rope key.
        rope_layout: in which order they stand; keys of one order mean nothing in another.
    """

    kind: ClassVar[str] = "latent"
    keeps_heads: ClassVar[bool] = False

    rank: int
    rope_dim: int
    rope_layout: str

    def fingerprint_fields(self) -> dict[str, str]:
        return {"rope_layout": self.rope_layout}

    def kernel_sizes(self, num_heads: int, nope_dim: int | None, block_size: int) -> KernelSizes | None:
        if nope_dim is None:
            return None
        return LatentSizes(
            num_heads=num_heads,
            rank=self.rank,
            rope_dim=self.rope_dim,
            head_dim=nope_dim,
            block_size=block_size,
            is_packed=not self.is_exact,
        )


def latent_spec(rank: int, rope_dim: int, rope_layout: str, dtype: str) -> LatentSpec:
    """Return the spec of a layer whose rows are numbers."""
    return LatentSpec(
        num_kv_heads=1,
        head_dim_k=rank + rope_dim,
        head_dim_v=0,
        dtype=dtype,
        rank=rank,
        rope_dim=rope_dim,
        rope_layout=rope_layout,
    )
