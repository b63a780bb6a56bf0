"""The files and the index of one cache directory, over all fingerprints: what store and catalog share."""

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from threading import Lock, RLock

from kvchat.directories import make_private
from kvchat.engine.api.ids import GroupId
from kvchat.engine.kernels.native.library import library
from kvchat.engine.kernels.read_block.native import Places
from kvchat.engine.memory.block_file import (
    SUFFIX,
    TEMPORARY_SUFFIX,
    DueFile,
    FileIdentity,
    FoundBlock,
    block_path,
    file_bytes,
    parse_header,
    read_file,
    render_head,
    scatter_file,
    temporary_path,
)
from kvchat.engine.memory.block_index import BlockIndex, BlockName, WrittenBytes
from kvchat.engine.memory.block_seal import PLAIN, BlockSeal, DiskKey
from kvchat.engine.memory.block_shelves import (
    block_files,
    remove_empty_shelves,
    storage_errors,
    sync_shelves,
    write_on_shelves,
)
from kvchat.engine.memory.disk_order import DiskOrder
from kvchat.engine.memory.files import Files, unlink_if_there
from kvchat.engine.memory.kept_blocks import KeptBlocks
from kvchat.engine.memory.quarantine import Quarantine
from kvchat.engine.memory.room import require_allowance
from kvchat.errors import BlockDamaged, BlockMissing, StorageError
from kvchat.writers import Writers

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 5.0
"""How long files that could not be looked at are left alone; twice as long each time that did not help."""
_LONGEST_UNSEEN_S = 3600.0
_ADOPTED_AT_ONCE = 1000
_BLOCK_FILE = re.compile(rf"([0-9a-f]{{64}})\.(\d{{1,9}}){re.escape(SUFFIX)}")
_TEMPORARY_FILE = re.compile(rf"\..+\.([0-9a-z]+){re.escape(TEMPORARY_SUFFIX)}")


@dataclass(frozen=True, slots=True)
class _Work:
    """A block that is to be written, with its file's bytes."""

    block: FoundBlock
    head: bytes
    payload: memoryview


class BlockDirectory:
    """Block files by fingerprint, their index, and a quarantine for damaged files.

    Whatever a process is at work on has an unsettled row first (see `BlockIndex`). Opening settles what dead
    writers have left, and looks at all files only after a loss of power or of the index.
    """

    def __init__(
        self, cache_dir: Path, files: Files, clock: Callable[[], float], seal: BlockSeal = PLAIN
    ) -> None:
        """Open the directory and settle what a crash has left.

        Args:
            seal: how blocks lie in it.

        Raises: StorageError: it cannot be created or written.
        """
        cache_dir = seal.home(cache_dir)
        self.files = files
        self.seal = seal
        self.blocks_dir = cache_dir / "blocks"
        self.quarantine = Quarantine(cache_dir / "quarantine", files)
        self.kept = KeptBlocks(cache_dir, files)
        self._clock = clock
        self._writers = Writers(cache_dir / "writers")
        self._is_announced = False
        self._is_closed = False
        self._lock = RLock()
        self._reading = Lock()
        self._doubtful: set[BlockName] = set()
        self._unseen_s: float | None = None
        self._look_again_s = LOOK_AGAIN_S
        self._has_seen_all = True
        self._unsynced: set[Path] = set()
        with storage_errors(cache_dir):
            make_private(self.blocks_dir, files)
        self.index = BlockIndex(cache_dir / "index.db", files, self.has_file, seal)
        self.order = DiskOrder(self.index, self.kept)
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

    def read(self, path: Path, identity: FileIdentity, payload: memoryview) -> None:
        """Fill `payload` with verified bytes; see `read_file`. Threads take turns at the medium."""
        read_file(self.files, path, identity, payload, self._reading, self.seal)

    @property
    def can_scatter(self) -> bool:
        """Whether `scatter` works: blocks are in the clear, and there are native kernels to read them."""
        return self.seal is PLAIN and self.files.gives_descriptors and library() is not None

    def scatter(self, path: Path, identity: FileIdentity, places: Places) -> None:
        """Fill a block's places in a pool with verified bytes; see `scatter_file`."""
        scatter_file(self.files, path, identity, places)

    def write(
        self,
        due: Sequence[tuple[FileIdentity, memoryview]],
        limit_bytes: int | None,
        daily_bytes: int | None,
        *,
        is_wanted: bool = False,
    ) -> bool:
        """Write blocks durably, all of them together. Others go first, so that the limit holds at every
        moment. `is_wanted`: they count as used again.

        Returns: False if there can be no room for them under the limit; none is there then.
        Raises: StorageError: the disk is full, cannot be written, or was written enough today. Nothing of the
            only block is left; of several, any may be there, whole.
        """
        works = [self._work(identity, payload) for identity, payload in due]
        num_bytes = sum(work.block.num_bytes for work in works)
        if limit_bytes is not None and num_bytes > limit_bytes:
            return False
        if daily_bytes is not None:
            today_bytes = self.written().today
            require_allowance(today_bytes=today_bytes, num_bytes=num_bytes, daily_bytes=daily_bytes)
        with self._lock:
            return self._write(works, limit_bytes, is_wanted)

    def welcomes(self, identity: FileIdentity, limit_bytes: int) -> bool:
        """Return whether room is to be made for a block that has not been used since it was computed."""
        header, num_bytes = identity.header, file_bytes(identity) + self.seal.file_overhead
        name = identity.fingerprint, self.seal.name(header.key), header.group
        parent, room_bytes = self.seal.name(header.parent), self.quarantine.beside(limit_bytes)
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

    def _work(self, identity: FileIdentity, payload: memoryview) -> _Work:
        head = render_head(identity, payload)
        block = FoundBlock(
            fingerprint=identity.fingerprint,
            header=identity.header,
            block_size=identity.block_size,
            num_bytes=len(head) + len(payload) + self.seal.file_overhead,
            modified_s=self._now_s(),
        )
        return _Work(block, head, payload)

    def remove(self, names: Sequence[BlockName]) -> None:
        """Remove files of blocks, and their rows.

        Raises: StorageError: they cannot be removed.
        """
        with self._lock:
            # A disk too full for a row must not keep blocks from going.
            with suppress(StorageError):
                self.index.unsettle(names, self._announced())
            self._doubtful.update(names)
            try:
                with storage_errors(self.blocks_dir):
                    for name in names:
                        unlink_if_there(self.files, self.path(*name))
                        self._unsynced.add(self.path(*name).parent)
            finally:
                self._settle_doubtful()

    def enforce(self, limit_bytes: int) -> bool:
        """Remove blocks until the files fit, as `DiskOrder` says: never a parent before its children, and
        none that is kept.

        Returns: False if what is left is being written or kept, and is too much.
        """
        if self.quarantine.num_bytes() > limit_bytes // 2:
            self.empty_quarantine()
        limit_bytes = self.quarantine.beside(limit_bytes)
        while (usage := self.index.usage()).num_bytes > limit_bytes:
            num_excess = (usage.num_bytes - limit_bytes) * usage.num_blocks // usage.num_bytes
            # A part of them at a time, since each that goes may turn its parent into the oldest leaf.
            leaves = self.order.due(1 + num_excess // 8)
            if not leaves:
                return False
            self.order.note_gone(leaves)
            self.remove([(leaf.fingerprint, leaf.name, group) for leaf in leaves for group in leaf.groups])
        return True

    # Making index and files agree

    def heal(self) -> bool:
        """Look at the files again if the index was lost since the last call, or if not all could be looked at
        the last time; return whether that was done.
        """
        if self.index.take_lost():
            self._is_announced = False
            self.rebuild()
            return True
        if not self._is_to_look_again():
            return False
        # The whole engine waits for this, and nothing says that the index is damaged.
        self._look_again_s = min(2 * self._look_again_s, _LONGEST_UNSEEN_S)
        self._look_at_all()
        return True

    def _is_to_look_again(self) -> bool:
        """Whether not all files could be looked at when that was tried last, some time ago."""
        unseen_s = self._unseen_s
        return unseen_s is not None and not 0 <= self._clock() - unseen_s < self._look_again_s

    def rebuild(self) -> None:
        """Look at every file: add rows for files without one, drop rows without a file. O(all).

        Effect: also removes temporary files of dead writers, and sets aside what is no block.
        """
        self._unseen_s, self._look_again_s = self._clock(), LOOK_AGAIN_S
        with self._lock:
            self._settle_doubtful()
        self.index.check()
        self._look_at_all()

    def _look_at_all(self) -> None:
        self._unseen_s, self._has_seen_all = self._clock(), True
        settled, unsettled = self.index.names()
        seen: set[BlockName] = set()
        found: list[FoundBlock] = []
        with storage_errors(self.blocks_dir):
            for fingerprint, path in block_files(self.files, self.blocks_dir, self._note_unlisted):
                if match := _BLOCK_FILE.fullmatch(path.name):
                    name = (fingerprint, DiskKey(bytes.fromhex(match[1])), GroupId(int(match[2])))
                    seen.add(name)
                    if name not in settled and name not in unsettled:
                        found += self._identified(fingerprint, path)
                elif (match := _TEMPORARY_FILE.fullmatch(path.name)) and not self._is_alive(match[1]):
                    unlink_if_there(self.files, path)
                if len(found) >= _ADOPTED_AT_ONCE:
                    self._adopt(found)
                    found = []
            self._adopt(found)
        self.index.drop(settled - seen)
        self._settle_dead()
        # Not before: files whose removal is not durable may be back after a loss of power.
        self.index.dismiss(self._dead())
        if self._has_seen_all:
            self._unseen_s = None

    def _note_unlisted(self, shelf: Path, error: OSError) -> None:
        self._has_seen_all = False
        log.warning("the blocks in %s cannot be looked at now and stay: %s", shelf, error.strerror or error)

    def adopt(self, fingerprint: bytes, path: Path) -> bool:
        """Add the row of a file without one; False if it was no block of this fingerprint, now set aside."""
        found = self._identified(fingerprint, path)
        with storage_errors(path.parent):
            self._adopt(found)
        return bool(found)

    def remove_empty(self) -> None:
        """Remove directories that hold nothing."""
        remove_empty_shelves(self.files, self.blocks_dir)

    def sync_removed(self) -> None:
        """Make it durable that files are gone."""
        with self._lock, storage_errors(self.blocks_dir):
            sync_shelves(self.files, self._unsynced)
            self._unsynced.clear()

    def empty_quarantine(self) -> None:
        """Remove what was set aside: its headers hold token ids."""
        with storage_errors(self.quarantine.directory):
            self.quarantine.empty()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._settle_doubtful()
            if self._is_announced and not self._doubtful:
                with suppress(StorageError):  # it counts as dead then
                    self.sync_removed()
                    self.index.dismiss([self._writers.own_id()])
            self.index.close()
            self._writers.close()

    def _write(self, works: Sequence[_Work], limit_bytes: int | None, is_wanted: bool) -> bool:
        blocks = [work.block for work in works]
        names = [self._name(block) for block in blocks]
        writer = self._announced()
        came_back = [name for name in names if self.order.is_proven(name)]
        try:
            self.index.reserve(blocks, writer, [is_wanted or name in came_back for name in names])
            try:
                has_room = limit_bytes is None or self.enforce(limit_bytes)
            finally:
                # Not before: what makes room settles the doubtful, whose bytes are not reserved then.
                self._doubtful.update(names)
            if not has_room:
                self.order.refuse(names)
                return False
            paths = [self.path(*name) for name in names]
            write_on_shelves(
                self.files,
                [
                    DueFile(
                        path, temporary_path(path, writer), self.seal.sealed(path, work.head, work.payload)
                    )
                    for path, work in zip(paths, works, strict=True)
                ],
            )
            self.index.settle(blocks, writer, self._today())
            self._doubtful.difference_update(names)
            self.order.accept(names)
            came_back = []
        finally:
            self.order.restore(came_back)
            self._settle_doubtful()
        return True

    def _recover(self) -> None:
        dead = self._dead()
        if self.heal() or not dead:
            return
        # On a full disk the rows of a dead writer may wait: they only say too much.
        with suppress(StorageError):
            if any(boot != self.files.boot_id() or not boot for boot in dead.values()):
                self.rebuild()
            else:
                self._settle_dead()

    def _settle_dead(self) -> None:
        dead = self._dead()
        for writer in dead:
            names = self.index.unsettled(writer)
            with storage_errors(self.blocks_dir):
                for name in names:
                    unlink_if_there(self.files, temporary_path(self.path(*name), writer))
                self._settle(names, writer)

    def _settle_doubtful(self) -> None:
        """Settle what this writer has begun and not ended. What cannot be settled now waits."""
        if not self._doubtful:
            return
        writer = self._writers.own_id() if self._is_announced else ""
        with suppress(StorageError), storage_errors(self.blocks_dir):
            for name in self._doubtful:
                unlink_if_there(self.files, temporary_path(self.path(*name), writer))
            self._settle(list(self._doubtful), writer)
            self._doubtful.clear()

    def _settle(self, names: Sequence[BlockName], writer: str) -> None:
        # A file may have got no further than the rename.
        sync_shelves(self.files, {self.path(*name).parent for name in names if self.has_file(name)})
        self.index.settle_again(names, writer)

    def sees(self, name: BlockName) -> bool:
        """Whether a block's file is there; not if that cannot be told now: then it is computed again."""
        try:
            return self.files.identity(self.path(*name)) is not None
        except OSError:
            return False

    def has_file(self, name: BlockName) -> bool:
        """Whether a block's file is there, or may be: if that cannot be told now, nothing is forgotten."""
        try:
            return self.files.identity(self.path(*name)) is not None
        except OSError:
            return True

    def _dead(self) -> dict[str, str]:
        return {writer: boot for writer, boot in self.index.writers().items() if not self._is_alive(writer)}

    def _is_alive(self, writer: str) -> bool:
        return self._writers.is_own(writer) or self._writers.is_alive(writer)

    def _announced(self) -> str:
        """Return this writer's id, made known durably before it changes anything."""
        if self._is_closed:
            raise StorageError(f"The cache in {self.blocks_dir} was closed already.")
        self.heal()
        with storage_errors(self.blocks_dir):
            writer = self._writers.own_id()
        if not self._is_announced:
            self.index.announce(writer, self.files.boot_id())
            self._is_announced = True
        return writer

    def _identified(self, fingerprint: bytes, path: Path) -> list[FoundBlock]:
        """Return what a file says it is; nothing if it is no block of this fingerprint, now set aside, or if
        it cannot be looked at now.
        """
        try:
            found = parse_header(path, self.seal)
            if found.fingerprint != fingerprint:
                raise BlockDamaged(f"The block file {path} was written for another model.")
        except BlockMissing:
            return []
        except BlockDamaged:
            self.quarantine.take(path)
            return []
        except StorageError:
            self._has_seen_all = False
            return []
        return [replace(found, modified_s=min(found.modified_s, self._clock()))]

    def _adopt(self, found: Sequence[FoundBlock]) -> None:
        sync_shelves(self.files, {self.path(*self._name(block)).parent for block in found})
        self.index.add(found)

    def _name(self, block: FoundBlock) -> BlockName:
        return block.fingerprint, self.seal.name(block.header.key), block.header.group

    def _today(self) -> int:
        return date.fromtimestamp(self._clock()).toordinal()

    def _now_s(self) -> float:
        """Return the time, never before the last use of any block: a clock may be set back."""
        return self.index.moment(self._clock())
