"""Blocks on their way between the disk tier and a bundle, and from one name to another. Loads no model."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from kvchat.engine.api.ids import BlockKey, GroupId, block_key, from_u32le, u32le
from kvchat.engine.memory.disk.block_file import BlockHeader
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import BlockDamaged, BlockMissing


@dataclass(frozen=True, slots=True)
class NewBlock:
    """One group's bytes of a block that is to be written."""

    group: GroupId
    parent: BlockKey
    token_ids: tuple[int, ...]
    payload: bytes

    @property
    def header(self) -> BlockHeader:
        return BlockHeader(
            key=block_key(self.parent, self.token_ids),
            parent=self.parent,
            group=self.group,
            token_ids=self.token_ids,
        )


class OfflineBlockStore:
    """The stored blocks of one fingerprint, found by what they hold. `close` closes the store."""

    def __init__(self, store: DiskStore) -> None:
        self.fingerprint, self.layouts, self.block_size = store.fingerprint, store.layouts, store.block_size
        self._store = store
        # A state has neither values nor a place for each of a block's tokens: it stands behind all of them.
        self._state_groups = [
            group
            for group, regions in store.layouts.items()
            if all(one.name.endswith(".k") and one.shape[1] != store.block_size for one in regions)
        ]

    def groups_of(self, key: BlockKey) -> list[GroupId]:
        """Return the groups that have a block's bytes."""
        return [group for group in self.layouts if self._store.has(key, group)]

    def longest_tail(self, parent: BlockKey, run: bytes) -> bytes | None:
        """Return the ids, packed, of the longest stored tail behind `parent` that begins a run of ids."""
        longest = max((tail for _, tail in self._beginning(parent, run)), key=len, default=())
        return run[: 4 * len(longest)] or None

    def tails_with_states(self, parent: BlockKey, run: bytes) -> Iterator[tuple[bytes, list[GroupId]]]:
        """Yield the ids, packed, of the stored tails behind `parent` that begin a run of ids and have states
        of recurrent layers behind them, with the groups of those.
        """
        if not self._state_groups:
            return
        for key, tail in self._beginning(parent, run):
            groups = [group for group in self._state_groups if self._store.has(key, group)]
            if groups:
                yield run[: 4 * len(tail)], groups

    def _beginning(self, parent: BlockKey, run: bytes) -> Iterator[tuple[BlockKey, tuple[int, ...]]]:
        ids = tuple(from_u32le(run))
        return ((key, tail) for key, tail in self.tails_behind(parent) if ids[: len(tail)] == tail)

    def read(self, group: GroupId, parent: BlockKey, token_ids: bytes) -> bytes | None:
        """Return the verified bytes of a block, which counts as used now; None if it is gone or damaged."""
        ids = tuple(from_u32le(token_ids))
        header = BlockHeader(key=block_key(parent, ids), parent=parent, group=group, token_ids=ids)
        with suppress(BlockMissing, BlockDamaged):
            payload = bytes(self._store.read(header))
            self._store.touch([header.key])
            return payload
        return None

    def touch(self, keys: Iterable[BlockKey]) -> None:
        """Have blocks count as used now, for all who make room from here on."""
        self._store.touch(keys)
        self._store.flush_touched()

    def is_sound(self, group: GroupId, parent: BlockKey, token_ids: tuple[int, ...]) -> bool:
        """Read a block and return whether it is what it must be; a damaged one is set aside."""
        return self.read(group, parent, u32le(token_ids)) is not None

    def write(self, blocks: Iterable[NewBlock], *, is_wanted: bool = False) -> int:
        """Write blocks durably, together; return how many were not there and are now: none where the limit
        has no room for all of them.

        Args:
            is_wanted: they were asked for by name, and count as used again.
        """
        found = ((block.header, block.payload) for block in blocks)
        return self._store.write(found, is_wanted=is_wanted)

    def room_for(
        self, headers: Iterable[BlockHeader], source: "OfflineBlockStore", keys: Iterable[BlockKey]
    ) -> AbstractContextManager[None]:
        """Hold room for blocks that are written inside, and keep the blocks of `source` that they are made
        from; see `DiskStore.room_for`.
        """
        return self._store.room_for(headers, source.fingerprint, keys)

    def set_aside(self, group: GroupId, key: BlockKey) -> None:
        """Move a block that is not what it says to the quarantine."""
        self._store.set_aside(key, group)

    def remove(self, keys: Iterable[BlockKey]) -> int:
        """Remove blocks with all their groups, but none that is kept; return the bytes of their numbers."""
        return self._store.remove_keys(keys)

    def tails_behind(self, parent: BlockKey) -> Iterator[tuple[BlockKey, tuple[int, ...]]]:
        """Yield the names and ids of the stored tails behind a block."""
        for block in self._store.children(parent):
            if len(block.token_ids) < self.block_size:
                yield block.key, block.token_ids

    def close(self) -> None:
        self._store.close()
