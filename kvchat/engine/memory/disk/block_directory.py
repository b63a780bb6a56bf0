"""The files and the index of one cache directory, over all fingerprints, for its store and administration."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from threading import Lock, RLock

from kvchat.engine.api.ids import GroupId
from kvchat.engine.memory.disk.block_encryption import BlockEncryption, DiskKey
from kvchat.engine.memory.disk.block_file import (
    DueFile,
    FileIdentity,
    FoundBlock,
    block_path,
    create_files,
    file_bytes,
    render_head,
    temporary_path,
)
from kvchat.engine.memory.disk.eviction import DiskEviction, Sources, require_allowance
from kvchat.engine.memory.disk.index import BlockIndex, BlockName, WrittenBytes
from kvchat.engine.memory.disk.index_rebuild import IndexRebuild
from kvchat.engine.memory.disk.io import (
    SystemFiles,
    storage_errors,
    subdirectories,
    sync_directories,
    unlink_if_there,
)
from kvchat.engine.memory.disk.quarantine import Quarantine
from kvchat.engine.memory.disk.write_intents import WriteIntents
from kvchat.errors import StorageError
from kvchat.platform.private_files import make_private
from kvchat.platform.writer_liveness import Writers


class BlockDirectory:
    """Block files by fingerprint, their index, and a quarantine for damaged files.

    Whatever a process is at work on has an unsettled row first (see `BlockIndex`). Opening settles what dead
    writers have left, and looks at all files only after a loss of power or of the index.
    """

    def __init__(
        self, cache_dir: Path, files: SystemFiles, clock: Callable[[], float], encryption: BlockEncryption
    ) -> None:
        """Open the directory and settle what a crash has left.

        Raises: StorageError: it cannot be created or written.
        """
        cache_dir = encryption.home(cache_dir)
        self.files = files
        self.encryption = encryption
        self.blocks_dir = cache_dir / "blocks"
        self.quarantine = Quarantine(cache_dir / "quarantine", files)
        self._clock = clock
        self._is_closed = False
        self._lock = RLock()
        self.reading = Lock()
        """Taken by whoever reads from the medium: threads take turns there."""
        self._unsynced: set[Path] = set()
        with storage_errors(cache_dir):
            make_private(self.blocks_dir, files)
        self.index = BlockIndex(cache_dir / "index.db", files, self.has_file, encryption)
        self._survey = IndexRebuild(self.blocks_dir, files, encryption, self.index, self.quarantine, clock)
        self._writers = Writers(cache_dir / "writers")
        self._in_progress = WriteIntents(self.blocks_dir, self._writers, files, self.index, self.has_file)
        self._room = DiskEviction(
            cache_dir, files, self.index, self.quarantine, self._in_progress, self.remove
        )
        self.kept, self.order = self._room.kept, self._room.order
        try:
            self._recover()
        except BaseException:
            self.index.close()
            raise

    def path(self, fingerprint: bytes, name: DiskKey, group: GroupId) -> Path:
        return block_path(self.blocks_dir, fingerprint, name, group)

    def written(self) -> WrittenBytes:
        """Return how many bytes of blocks were written on this local day, and ever."""
        return self.index.written(self._today())

    # Reading and writing

    def add(
        self,
        due: Sequence[tuple[FileIdentity, memoryview]],
        limit_bytes: int | None,
        daily_bytes: int | None,
        *,
        is_wanted: bool = False,
    ) -> bool:
        """Write blocks durably, all of them together. Others go first, so that the limit holds at every
        moment.

        Args:
            is_wanted: they count as used again.

        Returns: False if there can be no room for them under the limit; none is there then.
        Raises: StorageError: see `DiskStore.write`.
        """
        heads = [render_head(identity, payload) for identity, payload in due]
        blocks = [
            self._planned(identity, len(head) + len(payload))
            for head, (identity, payload) in zip(heads, due, strict=True)
        ]
        num_bytes = sum(block.num_bytes for block in blocks)
        if limit_bytes is not None and num_bytes > limit_bytes:
            return False
        if daily_bytes is not None:
            require_allowance(self.written().today, num_bytes, daily_bytes)
        names = list(map(self.index.name_of, blocks))
        with self._lock:
            writer = self._announced()
            ghosts = [name for name in names if self.order.take_ghost(name)]
            try:
                self.index.reserve(blocks, writer, [is_wanted or name in ghosts for name in names])
                if not self._make_space(names, limit_bytes):
                    self.order.refuse(names)
                    return False
                files = []
                for name, head, (_, payload) in zip(names, heads, due, strict=True):
                    path = self.path(*name)
                    parts = self.encryption.encrypted(path, head, payload)
                    files.append(DueFile(path, temporary_path(path, writer), parts))
                create_files(self.files, files)
                self.index.settle(blocks, writer, self._today())
                self._in_progress.end(names)
                self.order.accept(names)
                ghosts = []
            finally:
                self.order.restore(ghosts)
                self._in_progress.settle()
        return True

    def _make_space(self, names: Sequence[BlockName], limit_bytes: int | None) -> bool:
        """Evict for blocks whose rows are reserved, and note that they are being written."""
        try:
            # Space that is held is there, whatever others have reserved and must give up again.
            return limit_bytes is None or self._in_progress.holds(names) or self.enforce(limit_bytes)
        finally:
            # Not before: what makes space settles the doubtful, whose bytes are not reserved then.
            self._in_progress.begin(names)

    def welcomes(self, identity: FileIdentity, limit_bytes: int) -> bool:
        """Return whether room is to be made for a block that has not been used since it was computed."""
        header, num_bytes = identity.header, file_bytes(identity) + self.encryption.file_overhead
        name = identity.form.fingerprint, self.encryption.name(header.key), header.group
        parent, room_bytes = self.encryption.name(header.parent), self.quarantine.beside(limit_bytes)
        with self._lock:
            return self.order.welcomes(name, parent, num_bytes, room_bytes)

    def accept(self, name: BlockName) -> None:
        """Note that a block is there, whoever wrote it."""
        with self._lock:
            self.order.accept([name])

    def has_due(self) -> bool:
        """Whether there is anything that may make room."""
        with self._lock:
            return bool(self.order.due(1))

    def _planned(self, identity: FileIdentity, num_bytes: int) -> FoundBlock:
        """Return what is to be on disk. `num_bytes`: of its file in the clear."""
        return FoundBlock(
            fingerprint=identity.form.fingerprint,
            header=identity.header,
            block_size=identity.form.block_size,
            num_bytes=num_bytes + self.encryption.file_overhead,
            # Never before the last use of any block: a clock may be set back.
            modified_s=self.index.moment(self._clock()),
        )

    def remove(self, names: Sequence[BlockName]) -> None:
        """Remove files of blocks, and their rows.

        Raises: StorageError: they cannot be removed.
        """
        with self._lock:
            # A disk too full for a row must not keep blocks from going.
            with suppress(StorageError):
                self.index.unsettle(names, self._announced())
            self._in_progress.begin(names)
            try:
                with storage_errors(self.blocks_dir):
                    for name in names:
                        unlink_if_there(self.files, self.path(*name))
                        self._unsynced.add(self.path(*name).parent)
            finally:
                self._in_progress.settle()

    def enforce(self, limit_bytes: int) -> bool:
        """Remove blocks until the files fit; see `DiskEviction`.

        Returns: False if what is left is being written or kept, and is too much.
        """
        with self._lock:
            return self._room.enforce(limit_bytes)

    @contextmanager
    def room_for(
        self, due: Sequence[FileIdentity], sources: Sources, limit_bytes: int | None, elsewhere_bytes: int
    ) -> Iterator[None]:
        """Reserve space for blocks written inside, and pin what they are made from; see `DiskEviction`."""
        blocks = [self._planned(identity, file_bytes(identity)) for identity in due]
        names = list(map(self.index.name_of, blocks))
        with self._lock:
            writer = self._announced()
        try:
            with self._lock:
                self._room.hold(writer, blocks, names, sources, limit_bytes, elsewhere_bytes)
            yield
        finally:
            with self._lock:
                self._room.let_go(writer, names)

    # Making index and files agree

    def heal(self) -> bool:
        """Look at the files again if the index was lost since the last call, or if not all could be looked at
        the last time; return whether that was done.
        """
        if self.index.take_lost():
            self._in_progress.forget_announcement()
            self.rebuild()
            return True
        if not self._survey.is_due_again():
            return False
        # The whole engine waits for this, and nothing says that the index is damaged.
        self._survey.wait_longer()
        self._look_at_all()
        return True

    def rebuild(self) -> None:
        """Look at every file: add rows for files without one, drop rows without a file. O(all).

        Effect: also removes temporary files of dead writers, and sets aside what is no block.
        """
        self._survey.begin()
        with self._lock:
            self._in_progress.settle()
        self.index.check()
        self._look_at_all()

    def _look_at_all(self) -> None:
        self._survey.look(self._in_progress.is_alive)
        self._in_progress.settle_dead()
        # Not before: files whose removal is not durable may be back after a loss of power.
        self.index.dismiss(self._in_progress.dead())
        self._survey.end()

    def adopt(self, fingerprint: bytes, path: Path) -> bool:
        """Add the row of a file without one; False if it was no block of this fingerprint, now set aside."""
        return self._survey.adopt(fingerprint, path)

    def remove_unfinished(self) -> None:
        """Remove lists of kept blocks that a killed process has left half written."""
        self._room.remove_unfinished()

    def remove_empty(self) -> None:
        """Remove directories that hold nothing."""
        with suppress(OSError):  # one that cannot be listed stays
            for home in subdirectories(self.files, self.blocks_dir):
                nested: list[Path] = []
                with suppress(OSError):
                    nested = subdirectories(self.files, home)
                for directory in (*nested, home):
                    with suppress(OSError):  # not empty, or gone
                        self.files.remove_dir(directory)

    def sync_removed(self) -> None:
        """Make it durable that files are gone."""
        with self._lock, storage_errors(self.blocks_dir):
            sync_directories(self.files, self._unsynced)
            self._unsynced.clear()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._in_progress.settle()
            if self._in_progress.is_settled:
                with suppress(StorageError):  # it counts as dead then
                    self.sync_removed()
                    self._in_progress.dismiss()
            self.index.close()
            self._writers.close()

    def _recover(self) -> None:
        dead = self._in_progress.dead()
        # On a full disk the rows of a dead writer may wait: they only say too much.
        if not self.heal() and any(boot != self.files.boot_id() or not boot for boot in dead.values()):
            with suppress(StorageError):
                self.rebuild()
        self._room.settle_dead()

    def sees(self, name: BlockName) -> bool:
        """Whether a block's file is there; not if that cannot be told now: then it is computed again."""
        with suppress(OSError):
            return self.files.identity(self.path(*name)) is not None
        return False

    def has_file(self, name: BlockName) -> bool:
        """Whether a block's file is there, or may be: if that cannot be told now, nothing is forgotten."""
        with suppress(OSError):
            return self.files.identity(self.path(*name)) is not None
        return True

    def _announced(self) -> str:
        """Return this writer's id, made known durably before it changes anything."""
        if self._is_closed:
            raise StorageError(f"The cache in {self.blocks_dir} was closed already.")
        self.heal()
        return self._in_progress.announced()

    def _today(self) -> int:
        return date.fromtimestamp(self._clock()).toordinal()
