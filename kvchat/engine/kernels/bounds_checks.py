"""Launch checks of kernel arguments, made where `KVCHAT_DEBUG_KERNELS=1` is set.

A block id or slot outside its pool is read or written wherever it points to. Looking costs a wait for the
device in every layer.
"""

import os
from collections.abc import Sequence
from functools import cache

from torch import Tensor


@cache
def debugs() -> bool:
    """Whether arguments of kernels are looked at."""
    return os.environ.get("KVCHAT_DEBUG_KERNELS") == "1"


def check_slots(slots: Tensor, pool: Tensor) -> None:
    """Raise AssertionError unless all slots of a step [T] lie in the pool [N, H_kv, P, D] or behind it, and
    those in it are different.
    """
    num_slots = pool.shape[0] * pool.shape[2]
    listed = slots.tolist()
    wrong = [slot for slot in listed if slot < 0]
    if wrong:
        raise AssertionError(f"slot {wrong[0]} of a step is negative; the pool has {num_slots}")
    own = [slot for slot in listed if slot < num_slots]
    if len(set(own)) < len(own):
        twice = next(slot for slot in own if own.count(slot) > 1)
        raise AssertionError(f"two tokens of a step are stored in slot {twice}")


def check_blocks(blocks: Sequence[int], num_blocks: int) -> None:
    """Raise AssertionError unless all blocks that move lie in a pool of so many."""
    wrong = [block for block in blocks if not 0 <= block < num_blocks]
    if wrong:
        raise AssertionError(f"block {wrong[0]} is moved; the pool has {num_blocks}")


def check_targets(targets: Sequence[int], sources: Sequence[int] = ()) -> None:
    """Raise AssertionError where a block is written twice by one move, or is read and written."""
    if len(set(targets)) < len(targets):
        twice = next(block for block in targets if targets.count(block) > 1)
        raise AssertionError(f"block {twice} is written twice by one move")
    both = sorted({*targets} & {*sources})
    if both:
        raise AssertionError(f"block {both[0]} is read and written by one move")
