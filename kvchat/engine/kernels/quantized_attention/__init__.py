"""Dispatch by device: Triton on GPUs that it is made for, the native kernels on processors where they were
built, torch operations everywhere else.
"""

from torch import Tensor

from kvchat.engine.kernels.bounds_checks import check_blocks, check_targets, debugs
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.paged_attention import native as paged
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair
from kvchat.engine.kernels.paged_attention.step_tables import check_tables, tables_of
from kvchat.engine.kernels.quantized_attention import native, reference, torch_capturable, torch_fallback
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool, QuantizedStep, check_old_blocks
from kvchat.engine.kernels.quantized_kv import native as native_codes
from kvchat.engine.kernels.triton_support import HALF, takes_triton

__all__ = ["OPERATION", "quantize_blocks", "quantized_attention"]

OPERATION = "attention over quantized blocks"
MOST_WIDE_HEADS = 16
"""More query heads of a key-value head in float32 are left to torch: their tiles spill."""


def quantize_blocks(k_pool: Tensor, v_pool: Tensor, quantized: QuantizedPool, step: QuantizedStep) -> None:
    """Do what the reference does; see there for arguments."""
    if not len(step.sources):
        return
    if debugs():
        check_blocks(step.sources.tolist(), len(k_pool))
        check_blocks(step.targets.tolist(), len(quantized.keys))
        check_targets(step.targets.tolist())
    if not (native_codes.takes(k_pool) and native_codes.takes(v_pool)):
        reference.quantize_blocks(k_pool, v_pool, quantized, step)
        return
    for pool, records, record in (
        (k_pool, quantized.keys, quantized.key_record),
        (v_pool, quantized.values, quantized.value_record),
    ):
        native_codes.quantize_into(records, pool, (step.sources, step.targets), record)


def quantized_attention(
    query: Tensor, pools: KVPair, quantized: QuantizedPool, args: AttentionArgs, step: QuantizedStep
) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    if debugs():
        tables = tables_of(args)
        check_tables(tables, pools.keys)
        check_old_blocks(step.padded(), tables, quantized.keys.shape[0], pools.keys.shape[2])
    if takes_triton(pools.keys, OPERATION) and fits(
        query.shape[1] // pools.keys.shape[1], query.element_size()
    ):
        from kvchat.engine.kernels.quantized_attention import triton

        return HEALTH.attempt(
            OPERATION,
            lambda: triton.quantized_attention(query, pools, quantized, args, step),
            lambda: _plain(query, pools, quantized, args, step),
        )
    return _plain(query, pools, quantized, args, step)


def fits(group: int, element_size: int) -> bool:
    """Whether the kernel's tiles hold so many query heads of a key-value head. Pure."""
    return element_size <= HALF or group <= MOST_WIDE_HEADS


def _plain(
    query: Tensor, pools: KVPair, quantized: QuantizedPool, args: AttentionArgs, step: QuantizedStep
) -> Tensor:
    if step.tables is not None:
        return torch_capturable.quantized_attention(query, pools, quantized, args, step.tables)
    compute = native if paged.takes(query, *pools) else torch_fallback
    return compute.quantized_attention(query, pools, quantized, args, step.blocks)
