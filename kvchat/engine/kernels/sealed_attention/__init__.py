"""Dispatch by device: the native kernel on processors where it was built, torch operations elsewhere."""

from collections.abc import Sequence

from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import AttentionArgs
from kvchat.engine.kernels.sealed_attention import native, torch_ops
from kvchat.engine.kernels.sealed_attention.args import SealedPool
from kvchat.engine.kernels.sealed_attention.reference import seal

__all__ = ["seal", "sealed_attention"]


def sealed_attention(
    query: Tensor,
    pools: tuple[Tensor, Tensor],
    sealed: SealedPool,
    args: AttentionArgs,
    blocks: Sequence[Tensor],
) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    compute = native if native.takes(query, pools) else torch_ops
    return compute.sealed_attention(query, pools, sealed, args, blocks)
