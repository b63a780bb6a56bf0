"""Integrity check: the invariants of the bookkeeping, checked from outside it."""

from collections import Counter, abc
from collections.abc import Iterable, Mapping

from kvchat.engine.api.ids import BlockId, GroupId, block_key
from kvchat.engine.cache.block_pool import BlockPool
from kvchat.engine.cache.prefix_index import PrefixIndex
from kvchat.engine.formats.spec import Group
from kvchat.engine.sequences.sequence import Sequence

Pools = Mapping[GroupId, BlockPool]


def check_holders(
    group: Group,
    pool: BlockPool,
    sequences: Iterable[Sequence],
    moving: Iterable[tuple[GroupId, BlockId]],
    pins: Counter[BlockId] | None = None,
) -> None:
    """Assert that a block's count is the number of tables and moves that hold it, and its pins are `pins`."""
    holders = [0] * pool.num_blocks
    for sequence in sequences:
        for block in sequence.tables[group.id]:
            if block is not None:
                holders[block] += 1
    for moved_group, block in moving:
        if moved_group == group.id:
            holders[block] += 1
    pool.check_integrity(holders, pins)


def check_index(index: PrefixIndex, pools: Pools) -> None:
    """Assert that names recompute, and that index and pools agree on who has which."""
    for node in index:
        assert block_key(node.parent, node.token_ids) == node.key
        for group, block in node.blocks.items():
            assert pools[group].key(block) == node.key
    for group, pool in pools.items():
        for block in map(BlockId, range(pool.num_blocks)):
            key = pool.key(block)
            assert key is None or index.block(key, group) == block


def check_sequence(sequence: Sequence, groups: abc.Sequence[Group], pools: Pools, block_size: int) -> None:
    """Assert that a sequence holds all that its next query sees and nothing behind it, full blocks named, the
    tail not.
    """
    assert 0 <= sequence.computed_len <= len(sequence.token_ids)
    assert len(sequence.keys) == sequence.computed_len // block_size
    for group in groups:
        num_tokens = sequence.computed_len + sequence.num_ahead
        assert len(sequence.tables[group.id]) == group.num_blocks(num_tokens, block_size)
        if group.is_state and sequence.computed_len:
            assert sequence.tables[group.id][0] is not None
        for number in sequence.view_schedule.numbers(group, sequence.computed_len, block_size):
            block = sequence.tables[group.id][number]
            assert block is not None, f"block {number} of group {group.id} is hidden"
            key = pools[group.id].key(block)
            assert key == (sequence.name_of(group, number)[0] if number < len(sequence.keys) else None)
