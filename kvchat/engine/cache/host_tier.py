"""The host tier as bookkeeping: which named blocks have a place in host memory.

A block comes here when it is evicted from the device, under the name it has there, and is found again by that
name. It is the same accounting as on the device, with pools and an index of its own. A place gets its name
only when its bytes have been copied, and is held while it is written or read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kvchat.engine.api.cache_events import CacheEventKind, CacheEventLog
from kvchat.engine.api.ids import BlockId, BlockKey, GroupId
from kvchat.engine.cache.block_pool import BlockPool
from kvchat.engine.cache.eviction import Eviction, make_order
from kvchat.engine.cache.prefix_index import IndexNode, PrefixIndex
from kvchat.engine.cache.slow_tiers import SlowTier, TierNode
from kvchat.engine.formats.spec import Group


class HostTier(SlowTier):
    """Places of a fixed number of blocks per group in host memory."""

    def __init__(
        self,
        groups: Sequence[Group],
        num_blocks: Mapping[GroupId, int],
        eviction: Eviction = Eviction.S3FIFO,
        is_worth: Callable[[IndexNode], bool] = lambda _: True,
    ) -> None:
        """Args:
        num_blocks: places of each group; a group without any keeps nothing here.
        is_worth: whether a block is worth a place; the parents of those that are here always are.
        """
        self._index = PrefixIndex()
        self.change_log = self._index.change_log
        self._standing_alone = {group.id for group in groups if group.spec.stands_alone}
        self.pools = {
            group: BlockPool(count, partial(self._evicted, group), make_order(eviction, count))
            for group, count in num_blocks.items()
            if count > 0
        }
        self._is_worth = is_worth
        self._reserved: list[tuple[GroupId, BlockId, IndexNode]] = []
        self._awaited: set[tuple[GroupId, BlockKey]] = set()
        """Parents of the blocks that have been reserved a place."""
        self._held: list[tuple[GroupId, BlockId]] = []
        self._lent: list[tuple[GroupId, BlockId]] = []
        self._events: CacheEventLog | None = None

    def watch(self, events: CacheEventLog) -> None:
        """Note from now on what is evicted from here."""
        self._events = events

    def has_all(self, keys: Sequence[BlockKey], group: GroupId) -> Sequence[bool]:
        return [self._index.block(key, group) is not None for key in keys]

    def nearest(self, parent: BlockKey, token_ids: Sequence[int], most: int) -> Sequence[TierNode]:
        return [
            TierNode(node.key, node.token_ids, frozenset(node.blocks))
            for node in self._index.nearest(parent, token_ids, most)
        ]

    def reserve(self, node: IndexNode, group: GroupId) -> BlockId | None:
        """Return a place for a block that is about to lose its own, evicting another one if need be.

        Returns:
            The place to copy it to, held until `finish_moves`; None: it is here already, it is not worth it,
            or there is no room.
        """
        pool = self.pools.get(group)
        if pool is None:
            return None
        known = self._index.block(node.key, group)
        if known is not None:
            self.pools[group].share(known)
            self._held.append((group, known))
            return None
        if not pool.num_available or not (self._is_worth(node) or self._has_child(node.key, group)):
            return None
        place = pool.allocate()
        self._reserved.append((group, place, replace(node, blocks={})))
        self._awaited.add((group, node.parent))
        return place

    def find(self, key: BlockKey, group: GroupId) -> BlockId | None:
        """Return a block's place, None if it is not here. Pure."""
        return self._index.block(key, group)

    def lend(self, group: GroupId, place: BlockId) -> None:
        """Keep a place from being evicted until `take_back`: it is being read."""
        self.pools[group].share(place)
        self.pools[group].touch(place)
        self._lent.append((group, place))

    def take_back(self, group: GroupId, place: BlockId) -> None:
        self._lent.remove((group, place))
        self.pools[group].release(place)

    def finish_moves(self) -> None:
        """Name the places that have been written and let go of all that were held."""
        for group, place, node in self._reserved:
            if self._index.block(node.key, group) is None:
                parent = None if group in self._standing_alone else node.parent
                self.pools[group].name(place, node.key, parent)
                self._index.add(node, group, place)
            self.pools[group].release(place)
        for group, place in self._held:
            self.pools[group].release(place)
        self._reserved.clear()
        self._awaited.clear()
        self._held.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError on any broken invariant."""
        for group, pool in self.pools.items():
            holders = [0] * pool.num_blocks
            for held_group, place in [
                *self._held,
                *self._lent,
                *(reserved[:2] for reserved in self._reserved),
            ]:
                if held_group == group:
                    holders[place] += 1
            pool.check_integrity(holders)
        self._index.check_integrity(self.pools)

    def _has_child(self, key: BlockKey, group: GroupId) -> bool:
        """Whether a block that is worth nothing without this one is here or on its way."""
        if group in self._standing_alone:
            return False
        return (group, key) in self._awaited or self.pools[group].num_children(key) > 0

    def _evicted(self, group: GroupId, key: BlockKey) -> None:
        self._index.remove(key, group)
        if self._events is not None:
            self._events.note(CacheEventKind.EVICT, "host memory needed its place", group, key)
