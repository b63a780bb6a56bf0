"""Dispatch by device: the native kernel on processors where it was built, torch operations elsewhere."""

from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import AttentionArgs
from kvchat.engine.kernels.sealed_attention import native, table_ops, torch_ops
from kvchat.engine.kernels.sealed_attention.args import SealedPool, SealedStep
from kvchat.engine.kernels.sealed_attention.reference import seal

__all__ = ["seal", "sealed_attention"]


def sealed_attention(
    query: Tensor,
    pools: tuple[Tensor, Tensor],
    sealed: SealedPool,
    args: AttentionArgs,
    step: SealedStep,
) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    if step.tables is not None:
        return table_ops.sealed_attention(query, pools, sealed, args, step.tables)
    compute = native if native.takes(query, pools) else torch_ops
    return compute.sealed_attention(query, pools, sealed, args, step.blocks)
