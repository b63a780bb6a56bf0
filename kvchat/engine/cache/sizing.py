"""How many blocks each group gets from a number of bytes."""

from collections.abc import Sequence
from math import ceil

from kvchat.engine.api.ids import GroupId
from kvchat.engine.cache.spec import Group
from kvchat.errors import PoolExhausted

SLIDING_SHARE = 4
"""A sliding group gets one block for this many blocks of a full group, beyond what running sequences need."""


def window_blocks(window: int, block_size: int) -> int:
    """Return the most blocks a running sequence holds in a sliding group between steps."""
    return ceil(window / block_size) + 1


def least_blocks(group: Group, context_len: int, chunk_len: int, block_size: int) -> int:
    """Return how many blocks one sequence of `context_len` tokens needs in `group`, computed in chunks."""
    whole = ceil(context_len / block_size)
    if group.spec.window is None:
        return whole
    return min(whole, window_blocks(group.spec.window, block_size) + ceil(chunk_len / block_size))


def pool_blocks(
    groups: Sequence[Group], limit_bytes: int, *, context_len: int, chunk_len: int, block_size: int
) -> dict[GroupId, int]:
    """Return the number of blocks of each group's pool.

    Full groups get equal numbers of tokens. Sliding groups get a share of that, because a sequence holds only
    its window there; without full groups they are treated as full ones.

    Args:
        limit_bytes: most bytes of all pools together.
        context_len: longest sequence that should fit; shorter if the bytes do not allow it.
        chunk_len: tokens computed in one step.

    Raises:
        PoolExhausted: not even one block and one window fit; the message says how many bytes would.
    """
    shortest = {
        g.id: least_blocks(g, min(context_len, 2 * block_size), chunk_len, block_size) for g in groups
    }
    least = sum(g.block_bytes(block_size) * shortest[g.id] for g in groups)
    if least > limit_bytes:
        raise PoolExhausted(
            f"the device pool needs at least {least} bytes for this model, but may use {limit_bytes}"
        )
    low, high = 1, limit_bytes // min(g.block_bytes(block_size) for g in groups)
    while low < high:
        middle = (low + high + 1) // 2
        if _total_bytes(groups, middle, shortest, block_size) <= limit_bytes:
            low = middle
        else:
            high = middle - 1
    return _shares(groups, low, shortest)


def _shares(groups: Sequence[Group], num_full: int, shortest: dict[GroupId, int]) -> dict[GroupId, int]:
    has_full = any(group.spec.window is None for group in groups)
    shares: dict[GroupId, int] = {}
    for group in groups:
        divisor = SLIDING_SHARE if has_full and group.spec.window is not None else 1
        shares[group.id] = max(shortest[group.id], num_full // divisor)
    return shares


def _total_bytes(
    groups: Sequence[Group], num_full: int, shortest: dict[GroupId, int], block_size: int
) -> int:
    shares = _shares(groups, num_full, shortest)
    return sum(group.block_bytes(block_size) * shares[group.id] for group in groups)
