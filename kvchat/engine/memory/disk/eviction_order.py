"""Eviction order on disk: blocks used once go before those used again.

A block is proven once a request uses it after it was stored. While at least one in `SMALL_SHARE` of the
blocks is neither that nor kept, the unproven ones go, longest unused first, and otherwise the longest unused
of the proven: one scan of a long document, or one large import, takes no more room than that from what is
used again and again, and never less than one block, so that on a disk for a few blocks a new conversation
gets in too, a block with each request. What more there is of it is not written, since of a chain the end
gives way first; the next request that uses the chain has it written. A block that comes back soon after it
went is proven at once. Leaves go first, and nothing that is kept, or of which a group is being written.

Source: S3-FIFO, Yang et al., SOSP 2023. Differences: the main queue is in the order of the last use, so that
an eviction writes no row but those of what goes; and names of what went are remembered by the process alone,
since a deleted conversation leaves none on disk.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kvchat.engine.api.ids import BlockKey, GroupId
from kvchat.engine.cache.eviction import SMALL_SHARE, Eviction, Ghosts
from kvchat.engine.memory.disk.block_encryption import DiskKey
from kvchat.engine.memory.disk.index import BlockIndex, BlockName, IndexedBlock
from kvchat.engine.memory.disk.pinned_blocks import Kept, PinnedBlocks

MAX_GHOSTS: Final = 8192


class DiskEvictionOrder:
    """The order of one cache directory, over all fingerprints. Called under the directory's lock."""

    def __init__(
        self, index: BlockIndex, kept: Sequence[PinnedBlocks], eviction: Eviction = Eviction.S3FIFO
    ) -> None:
        self.eviction = eviction
        self._index = index
        self._kept_lists = tuple(kept)
        self._ghosts = Ghosts(MAX_GHOSTS)
        self._refused = Ghosts(MAX_GHOSTS)

    @property
    def num_ghosts(self) -> int:
        return len(self._ghosts)

    def due(self, limit: int) -> list[IndexedBlock]:
        """Return the leaves that go next, at most `limit`; none if all that is there is kept or being
        written.
        """
        if self.eviction is Eviction.LRU:
            return self._free(limit, None)
        is_small_due = not self._is_small(0, self._index.usage().num_blocks)
        return self._free(limit, not is_small_due) or self._free(limit, is_small_due)

    def welcomes(self, name: BlockName, parent: DiskKey, num_bytes: int, limit_bytes: int) -> bool:
        """Return whether room is to be made for a block that has not been used since it was computed: not
        where all that would have to go was used again, nor behind a block for which there was none.
        """
        is_behind_refused = self._is_behind_refused(name, parent)
        if not is_behind_refused and self._has_room(name, num_bytes, limit_bytes):
            return True
        if name[:2] in self._kept():
            return True
        # Neither for its own parent, nor for what another group has of the same block.
        own = (parent, name[1])
        if not is_behind_refused and any(leaf.name not in own for leaf in self._free(len(own) + 1, False)):
            return True
        self.refuse([name])
        return False

    def refuse(self, names: Iterable[BlockName]) -> None:
        """Note that there was no room for blocks: what comes behind them would be of no use."""
        for name in names:
            self._refused.add(_name(*name[:2]))
            self._refused.add(_name(*name))

    def _is_behind_refused(self, name: BlockName, parent: DiskKey) -> bool:
        """Whether there was no room for a block's parent, or for the block itself in another group."""
        if _name(name[0], parent) in self._refused:
            return True
        return _name(*name[:2]) in self._refused and _name(*name) not in self._refused

    def _has_room(self, name: BlockName, num_bytes: int, limit_bytes: int) -> bool:
        """Whether nothing has to go for a block, or what was used again."""
        usage = self._index.usage()
        has_room = usage.num_bytes + num_bytes <= limit_bytes or _name(*name) in self._ghosts
        if has_room or self.eviction is Eviction.LRU:
            return True
        return self._is_small(1, usage.num_blocks + 1) or self._num_unproven() == 0

    def _is_small(self, num_more: int, num_blocks: int) -> bool:
        """Whether less than its share of the blocks was never used again, and may give way to others."""
        num_unproven = self._index.num_unproven() + num_more
        # Only where it matters, since what is kept has to be looked up.
        return num_unproven * SMALL_SHARE < num_blocks or (
            (self._num_unproven() + num_more) * SMALL_SHARE < num_blocks
        )

    def _num_unproven(self) -> int:
        """Return how many blocks were never used again and are not kept."""
        return self._index.num_unproven() - self._index.num_unproven_of(self._kept())

    def note_gone(self, leaves: Iterable[IndexedBlock]) -> None:
        """Remember what has to go though it was never used again."""
        for leaf in leaves:
            if not leaf.is_proven:
                for group in leaf.groups:
                    self._ghosts.add(_name(leaf.fingerprint, leaf.name, group))

    def is_proven(self, name: BlockName) -> bool:
        """Return whether a block that is written now had to go not long ago; forgotten then."""
        return self._ghosts.take(_name(*name))

    def restore(self, names: Iterable[BlockName]) -> None:
        """Remember again what had to go, and is not written after all."""
        for name in names:
            self._ghosts.add(_name(*name))

    def accept(self, names: Iterable[BlockName]) -> None:
        """Note that blocks are there now."""
        for name in names:
            self._refused.take(_name(*name[:2]))
            self._refused.take(_name(*name))

    def _kept(self) -> Kept:
        """Return what never makes room."""
        return frozenset[tuple[bytes, DiskKey]]().union(*(kept.all() for kept in self._kept_lists))

    def _free(self, limit: int, is_proven: bool | None) -> list[IndexedBlock]:
        """Return leaves that are not kept, longest unused first; fewer only if there are no more."""
        kept = self._kept()
        num_seen = limit
        while True:
            found = self._index.oldest_leaves(num_seen, is_proven=is_proven)
            free = [leaf for leaf in found if (leaf.fingerprint, leaf.name) not in kept]
            if len(free) >= limit or len(found) < num_seen:
                return free[:limit]
            num_seen *= 4


def _name(fingerprint: bytes, name: DiskKey, group: GroupId | None = None) -> BlockKey:
    return BlockKey(fingerprint + name + (b"" if group is None else group.to_bytes(4)))
