"""Letting blocks go for others under the limit of a cache directory, and holding room before it is needed."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from kvchat.engine.memory.disk.block_encryption import DiskKey
from kvchat.engine.memory.disk.block_file import FoundBlock
from kvchat.engine.memory.disk.block_paths import storage_errors
from kvchat.engine.memory.disk.budget_notices import BudgetNotices, require_room
from kvchat.engine.memory.disk.eviction_lock import EvictionLock
from kvchat.engine.memory.disk.eviction_order import DiskEvictionOrder
from kvchat.engine.memory.disk.index import BlockIndex, BlockName
from kvchat.engine.memory.disk.io import Files
from kvchat.engine.memory.disk.pinned_blocks import PinnedBlocks
from kvchat.engine.memory.disk.quarantine import Quarantine
from kvchat.engine.memory.disk.write_intents import WriteIntents
from kvchat.errors import StorageError

Sources = tuple[bytes, Collection[DiskKey]]
"""A fingerprint, and names of blocks from which others are made."""


class DiskEviction:
    """Called under the directory's lock.

    Args:
        home: where files and index of the blocks are.
        remove: removes files of blocks, and their rows.

    Attributes:
        kept: what packs and pinned sessions keep.
        order: in which blocks go.
    """

    def __init__(
        self,
        home: Path,
        files: Files,
        index: BlockIndex,
        quarantine: Quarantine,
        in_progress: WriteIntents,
        remove: Callable[[Sequence[BlockName]], None],
    ) -> None:
        self._index = index
        self.kept = PinnedBlocks(home, files)
        self._held = PinnedBlocks(home, files, "held")
        """What is kept for as long as others are made from it, under the writer that makes them."""
        self._quarantine = quarantine
        self._in_progress = in_progress
        self._remove = remove
        self._lock = EvictionLock(home / "room.lock")
        self.order = DiskEvictionOrder(index, [self.kept, self._held])

    def enforce(self, limit_bytes: int) -> bool:
        """Evict blocks in `DiskEvictionOrder` until the files fit: never a parent before its children, and
        none that is pinned.

        Returns: False if what is left is being written or kept, and is too much.
        """
        if not self._num_due(limit_bytes):
            return True
        with self._lock.held():
            self.settle_dead()
            while num_due := self._num_due(limit_bytes):
                leaves = self.order.due(num_due)
                if not leaves:
                    return False
                self.order.note_gone(leaves)
                self._remove(
                    [(leaf.fingerprint, leaf.name, group) for leaf in leaves for group in leaf.groups]
                )
        return True

    def hold(
        self,
        writer: str,
        blocks: Sequence[FoundBlock],
        names: Sequence[BlockName],
        sources: Sources,
        limit_bytes: int | None,
        elsewhere_bytes: int,
    ) -> None:
        """Hold room for blocks that this writer is to write, and keep what they are made from, until
        `let_go`: nobody takes either to make room. Others go first.

        Args:
            names: of the blocks.
            elsewhere_bytes: what prepared weights take of the limit that a person gave.

        Raises: StorageError: they have no room beside what may not go, with the numbers; nothing has gone.
            Or the disk refuses.
        """
        with self._lock.held():
            self.settle_dead()
            if limit_bytes is not None:
                demand = self._demand(sum(block.num_bytes for block in blocks), sources, limit_bytes)
                require_room(demand, limit_bytes=limit_bytes, elsewhere_bytes=elsewhere_bytes)
            self._held.keep(writer, *sources)
            self._in_progress.hold(names)
            self._index.reserve(blocks, writer, [True] * len(blocks))
            if limit_bytes is not None:
                self.enforce(limit_bytes)

    def let_go(self, writer: str, names: Sequence[BlockName]) -> None:
        """Hold room no longer for those of some blocks that were not written."""
        self._in_progress.release(names)
        with suppress(StorageError):  # then until this writer has ended
            self._held.let_go(writer)

    def settle_dead(self) -> None:
        """Give back what dead writers held, as far as that can be done now."""
        with suppress(StorageError):
            self._in_progress.settle_dead()
            for writer in self._held.names():
                if not self._in_progress.is_alive(writer):
                    self._held.let_go(writer)

    def remove_unfinished(self) -> None:
        """Remove lists that a killed process has left half written."""
        self.kept.remove_unfinished()
        self._held.remove_unfinished()

    def _demand(self, new_bytes: int, sources: Sources, limit_bytes: int) -> BudgetNotices:
        fingerprint, keys = sources
        made_from = frozenset((fingerprint, key) for key in keys)
        kept = self.kept.all() | self._held.all()
        return BudgetNotices(
            new_bytes=new_bytes,
            source_bytes=self._index.num_bytes(made_from),
            kept_bytes=self._index.num_bytes(kept - made_from),
            writing_bytes=self._index.unsettled_bytes(),
            aside_bytes=limit_bytes - self._quarantine.beside(limit_bytes),
        )

    def _num_due(self, limit_bytes: int) -> int:
        """Return how many leaves go next so that the files fit, 0 where they do: a part of them at a time,
        since each that goes may turn its parent into the oldest leaf.
        """
        usage = self._index.usage()  # first: what is just being set aside counts twice then, and not never
        if self._quarantine.num_bytes() > limit_bytes // 2:
            with storage_errors(self._quarantine.directory):
                self._quarantine.empty()
        excess_bytes = usage.num_bytes - self._quarantine.beside(limit_bytes)
        if excess_bytes <= 0:
            return 0
        return 1 + excess_bytes * usage.num_blocks // usage.num_bytes // 8
