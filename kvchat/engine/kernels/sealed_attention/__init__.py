"""Dispatch by device: the native kernels on processors where they were built, torch operations elsewhere."""

from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import AttentionArgs
from kvchat.engine.kernels.quantised_kv import native as native_codes
from kvchat.engine.kernels.sealed_attention import native, reference, table_ops, torch_ops
from kvchat.engine.kernels.sealed_attention.args import SealedPool, SealedStep

__all__ = ["seal", "sealed_attention"]


def seal(k_pool: Tensor, v_pool: Tensor, sealed: SealedPool, step: SealedStep) -> None:
    """Do what the reference does; see there for arguments."""
    if not len(step.sources):
        return
    if not (native_codes.takes(k_pool) and native_codes.takes(v_pool)):
        reference.seal(k_pool, v_pool, sealed, step)
        return
    for pool, records, record in (
        (k_pool, sealed.keys, sealed.key_record),
        (v_pool, sealed.values, sealed.value_record),
    ):
        native_codes.quantise_into(records, pool, (step.sources, step.targets), record)


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
