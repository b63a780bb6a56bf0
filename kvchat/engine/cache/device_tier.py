"""The device tier as bookkeeping: a pool for each group, the names of its blocks, and what becomes of those
that must go.
"""

from collections import Counter, abc
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from kvchat.engine.api.cache_events import CacheEventKind, CacheEventLog
from kvchat.engine.api.ids import BlockId, BlockKey, GroupId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_holders import BlockHolders
from kvchat.engine.cache.block_operations import Demote
from kvchat.engine.cache.block_pool import BlockPool
from kvchat.engine.cache.eviction import Eviction, SnapshotOrder, make_order
from kvchat.engine.cache.host_tier import HostTier
from kvchat.engine.cache.prefix_index import IndexNode, PrefixIndex
from kvchat.engine.formats.spec import Group, Lifetime
from kvchat.engine.sequences.sequence import Sequence


class DeviceTier:
    """Blocks of a fixed number per group, found by name. What is evicted goes to host memory."""

    def __init__(
        self,
        groups: abc.Sequence[Group],
        num_blocks: Mapping[GroupId, int],
        *,
        block_size: int,
        host: HostTier | None = None,
        eviction: Eviction = Eviction.S3FIFO,
    ) -> None:
        """Args:
        num_blocks: blocks of each group's pool.
        host: takes what is evicted; None: it is lost.
        """
        self.groups = tuple(groups)
        self.groups_with_tail = tuple(
            group for group in groups if group.source is None and not group.is_state
        )
        self.has_states = any(group.is_state for group in groups)
        self.has_superseded = any(group.spec.lifetime is Lifetime.SUPERSEDED for group in groups)
        self.block_size = block_size
        self.host = host or HostTier((), {})
        self.index = PrefixIndex()
        self.change_logs = (self.index.change_log, self.host.change_log)
        self.num_transfer_changes = 0
        """Grows whenever a transfer begins, lets go of a block or has one landed."""
        self._standing_alone = {group.id for group in groups if group.spec.stands_alone}
        self.block_bytes = {group.id: group.block_bytes(block_size) for group in groups}
        self.events = CacheEventLog(self.block_bytes)
        self.host.watch(self.events)
        self.references = BlockHolders()
        self.num_requests = 0
        self.snapshots = {
            group.id: SnapshotOrder(lambda: self.num_requests) for group in groups if group.is_state
        }
        self.pools = {
            group: BlockPool(
                count,
                partial(self._evicted, group),
                self.snapshots[group] if group in self.snapshots else make_order(eviction, count),
                partial(self.references.note_shared, group),
            )
            for group, count in num_blocks.items()
        }
        self.references.watch(self.pools)
        self.held: Counter[tuple[GroupId, BlockId]] = Counter()
        """Blocks held by transfers, beside tables and copies."""
        self.brought: dict[tuple[GroupId, BlockKey], Tier] = {}
        """Blocks that were brought from a slower tier and that no request has used yet."""
        self._sources: list[tuple[GroupId, BlockId]] = []
        self._demotions: list[Demote] = []

    def name(
        self, group: GroupId, block: BlockId, node: IndexNode, path: abc.Sequence[BlockKey] = ()
    ) -> None:
        """Name a held block whose bytes are written. Unless it stands alone it is worth nothing without its
        parent, which is then evicted after it.

        Args:
            path: of a state: the root and the full blocks before this one.
        """
        parent = None if group in self._standing_alone else node.parent
        if group in self.snapshots:
            self.snapshots[group].note(block, node.start + len(node.token_ids), path)
        self.pools[group].name(block, node.key, parent)
        self.index.add(replace(node, blocks={}), group, block)

    def keep_source(self, group: GroupId, block: BlockId) -> None:
        """Take over one of a block's holders until `finish_moves`: the block is going to be copied."""
        self._sources.append((group, block))

    def demote(self, group: GroupId, block: BlockId) -> None:
        """Move a cached block to host memory; it stays where others need it or the host tier does not take
        it.
        """
        pool, key = self.pools[group], self.pools[group].key(block)
        is_needed = key is None or not pool.is_cached(block) or not pool.is_leaf(block)
        if key is not None and not is_needed and self._keep_in_host(group, block, key):
            self.forget(group, block)

    def forget(self, group: GroupId, block: BlockId) -> None:
        """Give a cached block's place away; its bytes are elsewhere, or on their way there."""
        key = self.pools[group].key(block)
        assert key is not None
        self.events.note(CacheEventKind.EVICT, "it was taken off the device", group, key)
        self._remove(group, key)
        self.pools[group].forget(block)

    def take_demotions(self) -> tuple[Demote, ...]:
        """Return the moves that bring evicted blocks to host memory, due before anything is overwritten."""
        demotions = tuple(self._demotions)
        self._demotions.clear()
        return demotions

    def finish_moves(self) -> None:
        """Note that all moves have been executed: let go of sources, name what was demoted."""
        for group, block in self._sources:
            self.pools[group].release(block)
        self._sources.clear()
        self.host.finish_moves()

    def check_integrity(
        self, sequences: Iterable[Sequence], pinned: Iterable[tuple[GroupId, BlockId]]
    ) -> None:
        """Raise AssertionError on any broken invariant.

        Args:
            pinned: each block once for each pin that holds it.
        """
        sequences = list(sequences)
        held = [*self._sources, *self.held.elements(), *pinned]
        for group in self.groups:
            _check_holders(group, self.pools[group.id], sequences, held)
        self.index.check_integrity(self.pools)
        self.references.check_integrity(sequences)
        for sequence in sequences:
            self._check_sequence(sequence)
        self.host.check_integrity()

    def _check_sequence(self, sequence: Sequence) -> None:
        """Assert that a sequence holds all that its next query sees and nothing behind it, full blocks named,
        the tail not.
        """
        size = self.block_size
        assert 0 <= sequence.computed_len <= len(sequence.token_ids)
        assert len(sequence.keys) == sequence.computed_len // size
        for group in self.groups:
            table = sequence.tables[group.id]
            assert len(table) == group.num_blocks(sequence.computed_len + sequence.num_ahead, size)
            if group.is_state and sequence.computed_len:
                assert table[0] is not None
            for number in sequence.view_schedule.numbers(group, sequence.computed_len, size):
                block = table[number]
                assert block is not None, f"block {number} of group {group.id} is hidden"
                key = self.pools[group.id].key(block)
                assert key == (sequence.name_of(group, number)[0] if number < len(sequence.keys) else None)

    def _evicted(self, group: GroupId, key: BlockKey) -> None:
        """Forget a block that is losing its place, and keep its bytes in host memory if there is room."""
        block = self.index.block(key, group)
        assert block is not None
        tier = Tier.HOST if self._keep_in_host(group, block, key) else None
        self.events.note(CacheEventKind.EVICT, "new blocks needed its place", group, key, tier=tier)
        self._remove(group, key)

    def _keep_in_host(self, group: GroupId, block: BlockId, key: BlockKey) -> bool:
        """Plan to copy a block to host memory, unless it is there; False if that does not take it."""
        place = self.host.reserve(self.index.node(key), group)
        if place is not None:
            self._demotions.append(Demote(group, block, place))
        return place is not None or self.host.find(key, group) is not None

    def _remove(self, group: GroupId, key: BlockKey) -> None:
        self.index.remove(key, group)
        self.brought.pop((group, key), None)


def _check_holders(
    group: Group, pool: BlockPool, sequences: Iterable[Sequence], others: Iterable[tuple[GroupId, BlockId]]
) -> None:
    """Assert that a block's count is the number of tables, moves and pins that hold it."""
    holders = [0] * pool.num_blocks
    for sequence in sequences:
        for block in sequence.tables[group.id]:
            if block is not None:
                holders[block] += 1
    for held_group, block in others:
        if held_group == group.id:
            holders[block] += 1
    pool.check_integrity(holders)
