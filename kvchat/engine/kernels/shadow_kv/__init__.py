"""Dispatch by device: Triton on GPUs that it is made for, native kernels on processors where they were built,
plain torch operations everywhere else. What these have in common is defined in the reference.
"""

from torch import Tensor

from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.paged_attention.args import KVPair
from kvchat.engine.kernels.shadow_kv import native, reference, torch_fallback
from kvchat.engine.kernels.shadow_kv.args import MOST_SLOTS, Change, ChosenChunks, ChunkChoice, Rotations
from kvchat.engine.kernels.shadow_kv.torch_fallback import products
from kvchat.engine.kernels.triton_support import takes_triton

SCORES, WORKING_SET = "scores of chunks", "the working set of a shadow"
LOADS, KEYS = "chunks from host memory", "keys from projections"


def chosen_attention(query: Tensor, pools: KVPair, choice: ChunkChoice) -> ChosenChunks | None:
    """Return what the reference returns; None: no kernel reads these in their blocks, or not all of them are
    finite. What is chosen has to be gathered then.
    """
    return native.chosen_attention(query, pools, choice) if native.takes(query, pools, choice) else None


def chunk_scores(query: Tensor, means: Tensor, always: Tensor, softmax_scale: float) -> Tensor:
    """Return what the reference returns; see there for arguments."""

    def plain() -> Tensor:
        return reference.wanted_scores(products(query, means), always, softmax_scale)

    if not takes_triton(query, SCORES):
        return plain()
    from kvchat.engine.kernels.shadow_kv import triton

    return HEALTH.attempt(SCORES, lambda: triton.chunk_scores(query, means, always, softmax_scale), plain)


def exchange(held: Tensor, wanted: Tensor, num_chunks: int) -> Change:
    """Return what the reference returns; see there for arguments.

    Args:
        num_chunks: that there are.
    """

    def plain() -> Change:
        return torch_fallback.exchange(held, wanted, num_chunks)

    if held.shape[1] > MOST_SLOTS or not takes_triton(held, WORKING_SET):
        return plain()
    from kvchat.engine.kernels.shadow_kv import triton

    return HEALTH.attempt(WORKING_SET, lambda: triton.exchange(held, wanted), plain)


def load_chunks(pool: Tensor, blocks: Tensor, change: Change, out: Tensor) -> None:
    """Do what the reference does; see there for arguments. A kernel reads host memory where it is pinned."""

    def plain() -> None:
        reference.load_chunks(pool, blocks, change, out)

    if not takes_triton(out, LOADS):
        plain()
        return
    from kvchat.engine.kernels.shadow_kv import triton

    HEALTH.attempt(LOADS, lambda: triton.load_chunks(pool, blocks, change, out), plain)


def restore_keys(
    projections: Tensor,
    directions: Tensor,
    change: Change,
    turns: Rotations,
    out: Tensor,
    first_chunk: int = 0,
) -> None:
    """Do what the reference does; see there for arguments."""

    def plain() -> None:
        reference.restore_keys(projections, directions, change, turns, out, first_chunk)

    if not takes_triton(out, KEYS):
        plain()
        return
    from kvchat.engine.kernels.shadow_kv import triton

    kernel = triton.restore_keys
    HEALTH.attempt(KEYS, lambda: kernel(projections, directions, change, turns, out, first_chunk), plain)
