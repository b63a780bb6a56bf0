"""The disk tier of one model: blocks and tails by key, written once, verified whenever they are read."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar

from kvchat.engine.api.ids import KEY_BYTES, BlockKey, GroupId, block_key
from kvchat.engine.cache.eviction import Eviction
from kvchat.engine.cache.slow_tiers import TierNode
from kvchat.engine.kernels.native.library import library
from kvchat.engine.kernels.read_block.native import ReadTargets
from kvchat.engine.memory.disk.block_directory import BlockDirectory
from kvchat.engine.memory.disk.block_encryption import PLAIN, encryption_of
from kvchat.engine.memory.disk.block_file import (
    BlockForm,
    BlockHeader,
    FileIdentity,
    Layout,
    Region,
    file_bytes,
    read_file,
    scatter_file,
)
from kvchat.engine.memory.disk.eviction import no_room, require_allowance, too_long
from kvchat.engine.memory.disk.index import BlockName, DiskUsage, IndexedBlock, WrittenBytes
from kvchat.engine.memory.disk.io import SYSTEM, Buffer, SystemFiles, storage_errors
from kvchat.errors import BlockDamaged, BlockMissing, StorageError
from kvchat.platform.encryptor import Encryptor

Answer = TypeVar("Answer")

__all__ = ["BlockHeader", "DiskStore", "DiskUsage", "Region", "WrittenBytes"]


class DiskStore:
    """Blocks of one fingerprint in a cache directory, which other fingerprints and processes may share.

    May be called from several threads. Answers about what is there are hints, since another process may
    remove a block at any time; `read` alone gives bytes, and only bytes it has verified.
    """

    def __init__(
        self,
        cache_dir: Path,
        *,
        fingerprint: bytes,
        layouts: Mapping[GroupId, Layout],
        block_size: int,
        limit_bytes: int | None,
        daily_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
        files: SystemFiles = SYSTEM,
        encryptor: Encryptor | None = None,
        eviction: Eviction = Eviction.S3FIFO,
        elsewhere: Callable[[], int] = lambda: 0,
    ) -> None:
        """Open the store, settle what a crash left behind, and make it fit its limit.

        Args:
            layouts: for each group the tensors of one block, in the order of their bytes.
            limit_bytes: most bytes of all fingerprints' files together, and of what is `elsewhere`; None: no
                limit.
            daily_bytes: most bytes written on one local day by all processes, which may each be one block
                late to see it; None: no limit.
            encryptor: what blocks are encrypted with; None: they are in the clear.
            eviction: which blocks make room first.
            elsewhere: what other files, such as prepared weights, take of the limit now.

        Raises: StorageError: the directory cannot be created or written.
        """
        assert len(fingerprint) == KEY_BYTES
        self._given_bytes = limit_bytes
        self.daily_bytes = daily_bytes
        self._elsewhere = elsewhere
        self.shortage: str | None = None
        """Why the last block that was to be written found no room, with what to do; None if it found some."""
        self.left_out: str | None = None
        """Why the last block was left out though others might have gone, with what to do; else None."""
        self.fingerprint = fingerprint
        self.layouts = dict(layouts)
        self._forms = {
            group: BlockForm(fingerprint=fingerprint, block_size=block_size, layout=layout)
            for group, layout in layouts.items()
        }
        self.block_size = block_size
        self._clock = clock
        self._touched: dict[BlockKey, float] = {}
        self._touched_lock = Lock()
        self._directory = BlockDirectory(cache_dir, files, clock, encryption_of(encryptor))
        self._directory.order.eviction = eviction
        self._index = self._directory.index
        if (most_bytes := self.limit_bytes) is not None:
            self._directory.enforce(most_bytes)

    @property
    def limit_bytes(self) -> int | None:
        """What blocks may take now, since other processes prepare weights too; None: there is no limit."""
        return None if self._given_bytes is None else max(0, self._given_bytes - self._elsewhere())

    def has(self, key: BlockKey, group: GroupId) -> bool:
        """Whether a block is there. Pure; one look-up in the index and one at the file. What cannot be told
        now is not there.
        """
        is_indexed = self._index.contains(self.fingerprint, key, group)
        return is_indexed and self._directory.sees(self._name(key, group))

    def has_all(self, keys: Sequence[BlockKey], group: GroupId) -> list[bool]:
        """For each key, whether its block is there. Pure; one query for a whole chain."""
        indexed = self._asked(lambda: self._index.contained(self.fingerprint, keys, group))
        return [key in indexed and self._directory.sees(self._name(key, group)) for key in keys]

    def groups_of(self, key: BlockKey) -> list[GroupId]:
        """Return the groups that have a block. Pure."""
        return [group for group in self.layouts if self.has(key, group)]

    def children(self, parent: BlockKey) -> tuple[TierNode, ...]:
        """Return the blocks and tails directly behind a parent, their keys recomputed. Pure."""
        return self._behind(parent, lambda: self._index.children(self.fingerprint, parent))

    def tails_behind(self, parent: BlockKey) -> Iterator[tuple[BlockKey, tuple[int, ...]]]:
        """Yield key and ids of the tails among the `children`."""
        for block in self.children(parent):
            if len(block.token_ids) < self.block_size:
                yield block.key, block.token_ids

    def nearest(self, parent: BlockKey, token_ids: Sequence[int], most: int) -> tuple[TierNode, ...]:
        """Return of the `children` those that begin most like `token_ids`, at most `most` in each direction.
        Pure; does not look at the others.
        """
        return self._behind(parent, lambda: self._index.nearest(self.fingerprint, parent, token_ids, most))

    def read(self, header: BlockHeader) -> memoryview:
        """Return the verified payload of a block. Blocks until it is read.

        Args:
            header: has all ids of the stored block, also where only some of them are wanted.

        Raises:
            BlockMissing: there is no such file; its row is gone now.
            BlockDamaged: a byte of the file is not what it must be; it was set aside and its row is gone.
            StorageError: it cannot be opened or read now; file and row stay.
        """
        payload = memoryview(bytearray(self._forms[header.group].payload_bytes))
        self.read_into(header, payload)
        return payload

    def read_if_sound(self, header: BlockHeader) -> bytes | None:
        """Return what `read` does of a block, which counts as used now; None if it is gone or damaged."""
        with suppress(BlockMissing, BlockDamaged):
            payload = bytes(self.read(header))
            self.touch([header.key])
            return payload
        return None

    def read_into(self, header: BlockHeader, out: memoryview) -> None:
        """Fill `out` with the verified payload of a block; otherwise as `read`."""
        assert len(out) == self._forms[header.group].payload_bytes
        with self._lost_if_unusable(header) as path:
            directory, identity = self._directory, self._identity(header)
            read_file(directory.files, path, identity, out, directory.reading, directory.encryption)

    def scatter(self, header: BlockHeader, places: ReadTargets) -> bool:
        """Fill a block's places in a pool, which are worthless after an error; otherwise as `read_into`.

        Returns: False if it can only be read in one run; nothing was read then.
        """
        assert places.num_bytes == self._forms[header.group].payload_bytes
        files = self._directory.files
        if self._directory.encryption is not PLAIN or not files.gives_descriptors or library() is None:
            return False
        with self._lost_if_unusable(header) as path:
            scatter_file(files, path, self._identity(header), places)
        return True

    def read_ahead(self, key: BlockKey, group: GroupId) -> bool:
        """Have a block that is read soon read into the system's cache, without waiting for the medium; True
        if it is there already. Only a hint.
        """
        return self._directory.files.read_ahead(self._path(key, group))

    def write(self, blocks: Iterable[tuple[BlockHeader, Buffer]], *, is_wanted: bool = False) -> int:
        """Write blocks durably, those that are not there, and wait until they are on the medium: together,
        which takes less than one after another. The limit always holds.

        Args:
            is_wanted: they count as used again; see `DiskEvictionOrder`.

        Returns: how many were written. A block that was there keeps its bytes. None is written where the
            limit has no room for all of them, or what has the room is worth more; then `shortage` or
            `left_out` says why.
        Raises: StorageError: disk full, not writable, or the day's limit reached. Nothing of an only block is
            left; of several, any may be there, whole.
        """
        self.flush_touched()
        self.shortage = self.left_out = None
        due: list[tuple[FileIdentity, memoryview]] = []
        limit_bytes = self.limit_bytes
        for header, payload in blocks:
            identity, data = self._identity(header), memoryview(payload).cast("B")
            assert len(data) == identity.form.payload_bytes
            if self._is_there(header):
                self._directory.accept(self._name(header.key, header.group))
                continue
            if is_wanted or limit_bytes is None or self._directory.welcomes(identity, limit_bytes):
                due.append((identity, data))
            else:
                self._note_no_room(len(data), limit_bytes)
        if not due:
            return 0
        if self._directory.add(due, limit_bytes, self.daily_bytes, is_wanted=is_wanted):
            self.shortage = self.left_out = None
            return len(due)
        assert limit_bytes is not None
        self._note_no_room(max(len(data) for _, data in due), limit_bytes)
        return 0

    @contextmanager
    def room_for(
        self, headers: Iterable[BlockHeader], made_from: bytes, sources: Iterable[BlockKey]
    ) -> Iterator[None]:
        """Hold room for blocks that are written inside, and keep those on disk that they are made from: no
        writer of any process takes either to make room, and what may go has gone. Only what is removed by
        name goes all the same.

        Args:
            headers: of blocks of which none is there.
            made_from: the fingerprint of `sources`.

        Raises: StorageError: the limit has no room for them beside those and what is kept, with the numbers,
            or so much may not be written today; nothing has gone. Or the disk refuses.
        """
        due, encryption = list(map(self._identity, headers)), self._directory.encryption
        num_bytes = sum(file_bytes(identity) + encryption.file_overhead for identity in due)
        if self.daily_bytes is not None:
            require_allowance(self.written().today, num_bytes, self.daily_bytes)
        self.flush_touched()
        names = made_from, list(map(encryption.name, sources))
        with self._directory.room_for(due, names, self.limit_bytes, self._elsewhere()):
            yield

    def remove(self, key: BlockKey, group: GroupId) -> None:
        """Remove one group's file of a block; nothing happens if it is not there, or is kept."""
        name = self._name(key, group)
        if name[:2] not in self._directory.kept.all():
            self._directory.remove([name])

    def set_aside(self, key: BlockKey, group: GroupId) -> None:
        """Move a block whose bytes are not what they must be to the quarantine; its row goes."""
        self._directory.quarantine.take(self._path(key, group))
        self._index.drop([self._name(key, group)])

    def remove_keys(self, keys: Iterable[BlockKey]) -> int:
        """Remove blocks with all their groups, but none that is kept.

        Returns: bytes of the payloads that were there.
        """
        kept = self._directory.kept.all()
        names = [self._name(key, group) for key in keys for group in self.layouts]
        names = [name for name in names if name[:2] not in kept]
        num_bytes = sum(
            self._forms[name[2]].payload_bytes for name in names if self._directory.has_file(name)
        )
        self._directory.remove(names)
        return num_bytes

    def touch(self, keys: Iterable[BlockKey]) -> None:
        """Note that blocks were used now, after they were stored if they are there. Cheap: reaches the index
        with the next write or at close.
        """
        now_s = self._clock()
        with self._touched_lock:
            self._touched.update(dict.fromkeys(keys, now_s))

    def flush_touched(self) -> None:
        """Let the index know which blocks were used."""
        with self._touched_lock:
            touched, self._touched = self._touched, {}
        if touched:
            self._index.touch(self.fingerprint, touched)

    def usage(self) -> DiskUsage:
        """Return what this fingerprint has on disk. O(1), from the index's own totals."""
        return self._index.usage(self.fingerprint)

    def total_usage(self) -> DiskUsage:
        """Return what all fingerprints have on disk, which is what the limit speaks of."""
        return self._index.usage()

    def written(self) -> WrittenBytes:
        """Return how much was written, by all processes."""
        return self._directory.written()

    def rebuild(self) -> None:
        """Make the index agree with the files."""
        self._directory.rebuild()

    def close(self) -> None:
        with suppress(StorageError):  # only the order of eviction suffers
            self.flush_touched()
        self._directory.close()

    @contextmanager
    def _lost_if_unusable(self, header: BlockHeader) -> Iterator[Path]:
        """Give a block's path; set its file aside and forget it where reading finds it damaged or gone."""
        path = self._path(header.key, header.group)
        try:
            yield path
        except (BlockMissing, BlockDamaged) as error:
            if isinstance(error, BlockDamaged):
                self._directory.quarantine.take(path)
            with suppress(StorageError):  # the row stays and misses again
                self._index.drop([self._name(header.key, header.group)])
            raise

    def _behind(self, parent: BlockKey, look: Callable[[], list[IndexedBlock]]) -> tuple[TierNode, ...]:
        blocks = (
            TierNode(block.key, block.token_ids, self._groups_there(block))
            for block in self._asked(look)
            if block.key == block_key(parent, block.token_ids)
        )
        return tuple(block for block in blocks if block.groups)

    def _groups_there(self, block: IndexedBlock) -> frozenset[GroupId]:
        sees = self._directory.sees
        return frozenset(group for group in block.groups if sees(self._name(block.key, group)))

    def _asked(self, ask: Callable[[], Answer]) -> Answer:
        """Return what the index says; it is asked again if it was lost and is back, since looking at all
        files takes less than computing them all.
        """
        answer = ask()
        with suppress(StorageError):  # it cannot be had back now
            if self._directory.heal():
                return ask()
        return answer

    def _is_there(self, header: BlockHeader) -> bool:
        path = self._path(header.key, header.group)
        with storage_errors(path.parent):
            if self._directory.files.identity(path) is None:
                return False
        if self._index.contains(self.fingerprint, header.key, header.group):
            return True
        return self._directory.adopt(self.fingerprint, path)

    def _identity(self, header: BlockHeader) -> FileIdentity:
        assert header.key == block_key(header.parent, header.token_ids)
        assert 0 < len(header.token_ids) <= self.block_size
        return FileIdentity(form=self._forms[header.group], header=header)

    def _path(self, key: BlockKey, group: GroupId) -> Path:
        return self._directory.path(*self._name(key, group))

    def _name(self, key: BlockKey, group: GroupId) -> BlockName:
        return self.fingerprint, self._directory.encryption.name(key), group

    def _note_no_room(self, block_bytes: int, limit_bytes: int) -> None:
        """Note what holds the room: what may never go, or what only does not go for this block."""
        if block_bytes <= limit_bytes and self._directory.has_due():
            self.shortage, self.left_out = None, too_long(limit_bytes)
            return
        self.left_out = None
        self.shortage = no_room(
            limit_bytes=limit_bytes,
            kept_bytes=self._index.num_bytes(self._directory.kept.all()),
            elsewhere_bytes=self._elsewhere(),
            block_bytes=block_bytes,
            aside_bytes=self._directory.quarantine.num_bytes(),
        )
