"""Dispatch by device: Triton on GPUs that it is made for, the native kernel on processors where it was built,
plain torch operations everywhere else.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from kvchat.engine.kernels.device import takes_triton
from kvchat.engine.kernels.native.library import library
from kvchat.engine.kernels.paged_attention import native, torch_ops
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, Prepared, SequenceSpan
from kvchat.engine.kernels.paged_attention.decodes import batch_decodes


def paged_attention(query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    if takes_triton(k_pool):
        from kvchat.engine.kernels.paged_attention import triton

        return triton.paged_attention(query, k_pool, v_pool, args)
    if native.takes(query, k_pool, v_pool):
        return native.paged_attention(query, k_pool, v_pool, args)
    return torch_ops.paged_attention(query, k_pool, v_pool, args)


def prepare(spans: Sequence[SequenceSpan], first_visible: Callable[[int], int], block_size: int) -> Prepared:
    """Return the sequences of a step in the form that is computed with, for all layers of a group.

    Args:
        first_visible: position → first position that a query there sees.
    """
    if library() is not None and spans[0].blocks.device.type == "cpu":
        return native.span_table(spans)
    return batch_decodes(spans, first_visible, block_size)
