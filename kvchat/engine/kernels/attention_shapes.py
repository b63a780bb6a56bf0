"""Sizes in which the attention kernels of a model are called; they are tried in them before they are used."""

from dataclasses import dataclass

from kvchat.engine.kernels.quantized_record import Code


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSizes:
    """How a layer attends, and what its blocks hold.

    Args:
        window, chunk: as of `AttentionArgs`.
        codes: what numbers of keys and of values become in quantized blocks; None: there are none.
    """

    num_heads: int = 8
    num_kv_heads: int = 2
    head_dim_k: int = 64
    head_dim_v: int = 64
    block_size: int = 64
    window: int | None = None
    chunk: int | None = None
    codes: tuple[Code, Code] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSizes:
    """Sizes of a latent layer.

    Args:
        head_dim: numbers of a head's key without rope, and of its value.
        is_packed: whether its rows are 8-bit records.
    """

    num_heads: int = 16
    rank: int = 128
    rope_dim: int = 32
    head_dim: int = 32
    block_size: int = 64
    is_packed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowSizes:
    """Sizes of a layer whose chunks are chosen. `rank`: of the basis of its keys."""

    num_heads: int = 8
    num_kv_heads: int = 2
    dim: int = 128
    value_dim: int = 128
    rank: int = 96


KernelSizes = AttentionSizes | LatentSizes
