"""Executes moves: copies inside the device pool, to and from host memory, loads from the disk store."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from time import monotonic

from kvchat.engine.api.ids import BlockKey, GroupId
from kvchat.engine.cache.block_operations import Fetch, Load, Move
from kvchat.engine.cache.slow_tiers import SlowTier, TierNode
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.disk.store import BlockHeader, DiskStore
from kvchat.engine.memory.host_copies import Transport
from kvchat.errors import BlockDamaged, BlockMissing, StorageError

log = logging.getLogger(__name__)

REFUSED_S = 5.0
"""How long a block that could not be read for a passing reason is not offered."""


class TierMover(SlowTier):
    """Moves bytes between the device pool and the store, and tells bookkeeping what the store has.

    A block that once failed to load is not offered again in this process, so that a request always comes to
    an end; for some time only, where nothing says that it is damaged or gone.
    """

    def __init__(
        self,
        pool: DevicePool,
        store: DiskStore | None,
        transport: Transport,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._pool = pool
        self._store = store
        self._transport = transport
        self._clock = clock
        self._refused_until_s: dict[tuple[BlockKey, GroupId], float] = {}
        """Blocks that could not be read, and when they are offered again: never, if damaged or gone."""

    def use(self, store: DiskStore | None) -> None:
        """Load from another store from now on."""
        self._store = store

    def execute(self, moves: Iterable[Move]) -> None:
        """Carry out the moves in their order."""
        self._transport.execute(moves)

    def settle(self) -> None:
        """Wait until all moves are carried out."""
        self._transport.settle()

    def fetch(self, move: Fetch) -> bool:
        """Carry out one move to the device, in any thread; False if its block is not to be had."""
        if isinstance(move, Load):
            return self._load(move)
        self._transport.promote(move)
        return True

    def read_ahead(self, move: Fetch) -> bool:
        """Have what is fetched soon read ahead, in any thread, without waiting; True if it is there."""
        if isinstance(move, Load) and self._store is not None:
            return self._store.read_ahead(move.key, move.group)
        return True

    def has_all(self, keys: Sequence[BlockKey], group: GroupId) -> Sequence[bool]:
        if self._store is None:
            return super().has_all(keys, group)
        there = self._store.has_all(keys, group)
        return [flag and self._is_offered(key, group) for key, flag in zip(keys, there, strict=True)]

    def nearest(self, parent: BlockKey, token_ids: Sequence[int], most: int) -> Sequence[TierNode]:
        if self._store is None:
            return ()
        found = self._store.nearest(parent, token_ids, most)
        return [node for node in found if all(self._is_offered(node.key, group) for group in node.groups)]

    def touch(self, keys: Iterable[BlockKey]) -> None:
        if self._store is not None:
            self._store.touch(keys)

    def _is_offered(self, key: BlockKey, group: GroupId) -> bool:
        until_s = self._refused_until_s.get((key, group))
        return until_s is None or self._clock() >= until_s

    def _load(self, load: Load) -> bool:
        assert self._store is not None
        header = BlockHeader(key=load.key, parent=load.parent, group=load.group, token_ids=load.token_ids)
        places = self._pool.places(load.group, load.target)
        try:
            # Nothing names the block yet, so that it may hold other bytes until they are verified.
            if places is None or not self._store.scatter(header, places):
                self._transport.bring(load.group, load.target, partial(self._store.read_into, header))
        except (BlockMissing, BlockDamaged, StorageError, OSError) as error:
            log.warning("a stored block is not used and will be computed again: %s", error)
            is_lost = isinstance(error, BlockMissing | BlockDamaged)
            until_s = inf if is_lost else self._clock() + REFUSED_S
            self._refused_until_s[load.key, load.group] = until_s
            return False
        self._refused_until_s.pop((load.key, load.group), None)
        self._store.touch([load.key])
        return True
