"""Pool sizing: blocks per group from a number of bytes."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.spec import Group, Lifetime
from kvchat.errors import PoolExhausted

SLIDING_SHARE = 4
"""A sliding group gets at least one block for this many blocks of a full group."""
RECENT_SHARE = 16
"""The same for the exact blocks of quantised layers. Each conversation needs two or three to go on."""
LEAST_BLOCKS = 2
"""Smaller pools of a full group are refused."""


STATE_SHARE = 4
"""States get one of so many bytes."""
LEAST_STATES = 4
"""A sequence that runs holds two, and its last two snapshots are worth keeping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of the longest conversation, of the largest step, and of a block."""

    context_len: int
    chunk_len: int
    block_size: int


def window_blocks(max_visible: int, block_size: int) -> int:
    """Return the most blocks a running sequence holds between steps in a group with this reach."""
    return ceil(max_visible / block_size) + 1


def least_blocks(group: Group, context_len: int, chunk_len: int, block_size: int) -> int:
    """Return how many blocks one sequence of `context_len` tokens needs in `group`, computed in chunks."""
    whole = max(1, group.num_blocks(context_len, block_size) + group.spec.num_spare_blocks)
    if group.spec.max_visible is None:
        return whole
    return min(whole, window_blocks(group.spec.max_visible, block_size) + ceil(chunk_len / block_size))


def pool_blocks(groups: Sequence[Group], limit_bytes: int, lengths: Lengths) -> dict[GroupId, int]:
    """Return the number of blocks of each group's pool.

    Full groups get equal numbers of tokens. Sliding groups get what a sequence needs that fills a full group,
    and more where there is room for many; without full groups they are treated as full ones.

    Args:
        limit_bytes: most bytes of all pools together.
        lengths: a conversation of this length should fit; a shorter one if the bytes do not allow it.

    Raises:
        PoolExhausted: not even two blocks fit; the message says how many bytes would.
    """
    block_size = lengths.block_size
    counts = _state_blocks(groups, limit_bytes, block_size)
    state_bytes = sum(group.block_bytes(block_size) * counts.get(group.id, 0) for group in groups)
    groups = [group for group in groups if not group.is_state]
    least = state_bytes + (full_bytes(groups, LEAST_BLOCKS, lengths) if groups else 0)
    if least > limit_bytes:
        raise PoolExhausted(
            f"the device pool needs at least {least} bytes for this model, but may use {limit_bytes}"
        )
    if not groups:
        return counts
    left = limit_bytes - state_bytes
    sizes = range(LEAST_BLOCKS, left // min(group.block_bytes(block_size) for group in groups) + 1)
    fitting = bisect_right(sizes, left, key=lambda count: full_bytes(groups, count, lengths))
    return counts | _shares(groups, sizes[fitting - 1], lengths)


def _state_blocks(groups: Sequence[Group], limit_bytes: int, block_size: int) -> dict[GroupId, int]:
    """Return how many states there are for: equally many in each group that has any."""
    states = [group for group in groups if group.is_state]
    each = sum(group.block_bytes(block_size) for group in states)
    share = limit_bytes // (STATE_SHARE if len(states) < len(groups) else 1)
    return {group.id: max(LEAST_STATES, share // each) for group in states}


def full_bytes(groups: Sequence[Group], num_full: int, lengths: Lengths) -> int:
    """Return the bytes of pools of which each full group's has `num_full` blocks; see `pool_blocks`. Pure."""
    counts = _shares(groups, num_full, lengths)
    return sum(group.block_bytes(lengths.block_size) * counts[group.id] for group in groups)


def _shares(groups: Sequence[Group], num_full: int, lengths: Lengths) -> dict[GroupId, int]:
    size = lengths.block_size
    longest = min(lengths.context_len, num_full * size)
    return {
        group.id: max(
            least_blocks(group, longest, lengths.chunk_len, size), num_full // _divisor(group, groups)
        )
        for group in groups
    }


def _divisor(group: Group, groups: Sequence[Group]) -> int:
    has_full = any(other.spec.max_visible is None for other in groups)
    if not has_full or group.spec.max_visible is None:
        return 1
    return RECENT_SHARE if group.spec.lifetime is Lifetime.SUPERSEDED else SLIDING_SHARE


def host_places(groups: Sequence[Group], limit_bytes: int, block_size: int) -> dict[GroupId, int]:
    """Return how many blocks of each group fit into host memory: equally many of each that hold tokens, and
    of states their share; possibly none.
    """
    states = [group for group in groups if group.is_state]
    of_tokens = [group for group in groups if not group.is_state]
    for_states = 0
    if states:
        for_states = limit_bytes // STATE_SHARE if of_tokens else limit_bytes
    return {
        group.id: share // sum(one.block_bytes(block_size) for one in alike)
        for alike, share in ((of_tokens, limit_bytes - for_states), (states, for_states))
        for group in alike
    }
