"""Write intents: rows that writers have begun and not yet settled (see `BlockIndex`)."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from kvchat.engine.memory.disk.block_file import block_path, temporary_path
from kvchat.engine.memory.disk.index import BlockIndex, BlockName
from kvchat.engine.memory.disk.io import SystemFiles, storage_errors, sync_directories, unlink_if_there
from kvchat.errors import StorageError
from kvchat.platform.writer_liveness import Writers


class WriteIntents:
    """The work of one writer, and what dead ones have left. Called under the directory's lock.

    Args:
        has_file: whether a block's file is there, or may be.
    """

    def __init__(
        self,
        blocks_dir: Path,
        writers: Writers,
        files: SystemFiles,
        index: BlockIndex,
        has_file: Callable[[BlockName], bool],
    ) -> None:
        self._blocks_dir = blocks_dir
        self._writers = writers
        self._files = files
        self._index = index
        self._has_file = has_file
        self._is_announced = False
        self._doubtful: set[BlockName] = set()
        self._held: set[BlockName] = set()
        """Blocks that are not begun yet, with rows that hold room for them."""

    @property
    def is_settled(self) -> bool:
        """Whether this writer is known, and has ended all that it began."""
        return self._is_announced and not self._doubtful and not self._held

    def announced(self) -> str:
        """Return this writer's id, made known durably before it changes anything.

        Raises: StorageError: it cannot be written.
        """
        with storage_errors(self._blocks_dir):
            writer = self._writers.own_id()
        if not self._is_announced:
            self._index.announce(writer, self._files.boot_id())
            self._is_announced = True
        return writer

    def forget_announcement(self) -> None:
        """Note that the index was lost, with what it said of this writer."""
        self._is_announced = False

    def dismiss(self) -> None:
        """Let this writer be known no longer: nothing of it has to be settled."""
        self._index.dismiss([self._writers.own_id()])

    def hold(self, names: Iterable[BlockName]) -> None:
        """Note that blocks have rows before they are begun."""
        self._held.update(names)

    def holds(self, names: Iterable[BlockName]) -> bool:
        """Whether room is held for all of some blocks. Pure."""
        return self._held.issuperset(names)

    def release(self, names: Iterable[BlockName]) -> None:
        """Give up the rows of those of some blocks that were not written."""
        given_up = self._held.intersection(names)
        self._held -= given_up
        self._doubtful |= given_up
        self.settle()

    def begin(self, names: Iterable[BlockName]) -> None:
        """Note at what blocks this writer is at work: nobody knows how they stand until it has ended."""
        self._doubtful.update(names)

    def end(self, names: Iterable[BlockName]) -> None:
        """Note that the rows of blocks agree with their files."""
        self._doubtful.difference_update(names)
        self._held.difference_update(names)

    def settle(self) -> None:
        """Settle what this writer has begun and not ended. What cannot be settled now waits."""
        if not self._doubtful:
            return
        writer = self._writers.own_id() if self._is_announced else ""
        with suppress(StorageError):
            self._settle(list(self._doubtful), writer)
            self._doubtful.clear()

    # What others have left

    def is_alive(self, writer: str) -> bool:
        return self._writers.is_own(writer) or self._writers.is_alive(writer)

    def dead(self) -> dict[str, str]:
        """Return the writers that have not ended properly, and the boot in which each began."""
        return {writer: boot for writer, boot in self._index.writers().items() if not self.is_alive(writer)}

    def settle_dead(self) -> None:
        """Settle what dead writers have begun.

        Raises: StorageError: it cannot be settled now.
        """
        for writer in self._index.writers_at_work():
            if not self.is_alive(writer):
                self._settle(self._index.unsettled(writer), writer)

    def _settle(self, names: Sequence[BlockName], writer: str) -> None:
        with storage_errors(self._blocks_dir):
            for name in names:
                unlink_if_there(self._files, temporary_path(block_path(self._blocks_dir, *name), writer))
            # A file may have got no further than the rename.
            there = {block_path(self._blocks_dir, *name).parent for name in names if self._has_file(name)}
            sync_directories(self._files, there)
            self._index.settle_again(names, writer)
