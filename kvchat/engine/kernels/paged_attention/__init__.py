"""Dispatch by device: Triton on GPUs that it is made for, the native kernel on processors where it was built,
plain torch operations everywhere else.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from kvchat.engine.kernels.bounds_checks import debugs
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.native.library import library
from kvchat.engine.kernels.paged_attention import native, torch_capturable, torch_fallback
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, Prepared, SequenceSpan, StepTables
from kvchat.engine.kernels.paged_attention.step_tables import check_tables, step_tables
from kvchat.engine.kernels.triton_support import takes_triton

OPERATION = "attention"


def paged_attention(query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    if debugs() and isinstance(args.prepared, StepTables):
        check_tables(args.prepared, k_pool)
    if takes_triton(k_pool, OPERATION):
        from kvchat.engine.kernels.paged_attention import triton

        return HEALTH.attempt(
            OPERATION,
            lambda: triton.paged_attention(query, k_pool, v_pool, args),
            lambda: _plain(query, k_pool, v_pool, args),
        )
    return _plain(query, k_pool, v_pool, args)


def _plain(query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs) -> Tensor:
    if isinstance(args.prepared, StepTables) and not args.spans:
        return torch_capturable.paged_attention(query, k_pool, v_pool, args, args.prepared)
    if native.takes(query, k_pool, v_pool):
        return native.paged_attention(query, k_pool, v_pool, args)
    return torch_fallback.paged_attention(query, k_pool, v_pool, args)


def prepare(spans: Sequence[SequenceSpan], first_visible: Callable[[int], int]) -> Prepared | None:
    """Return the sequences of a step in the form that is computed with, for all layers of a group; None: they
    are computed with as they are.

    Args:
        first_visible: position → first position that a query there sees.
    """
    if takes_triton(spans[0].blocks, OPERATION):
        return step_tables(spans, first_visible)
    if library() is not None and spans[0].blocks.device.type == "cpu":
        return native.span_table(spans)
    return None
