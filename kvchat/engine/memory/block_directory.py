"""The files and the index of one cache directory, over all fingerprints: what store and catalog share."""

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvchat.directories import make_private
from kvchat.engine.api.ids import BlockKey, GroupId
from kvchat.engine.memory.block_file import (
    SUFFIX,
    TEMPORARY_SUFFIX,
    FileIdentity,
    FoundBlock,
    block_path,
    parse_header,
    write_file,
)
from kvchat.engine.memory.block_index import BlockIndex, BlockName
from kvchat.errors import BlockDamaged, StorageError

MAX_QUARANTINED = 16
_TEMPORARY_MAX_AGE_S = 3600.0
_BLOCK_FILE = re.compile(rf"([0-9a-f]{{64}})\.(\d{{1,9}}){re.escape(SUFFIX)}")
_TEMPORARY_FILE = re.compile(rf"\..+\.(\d+)\.\d+{re.escape(TEMPORARY_SUFFIX)}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class BlockDirectory:
    """Block files by fingerprint, their index, and a quarantine for damaged files."""

    def __init__(self, cache_dir: Path) -> None:
        """Open the directory, compare the index with the files, and remove what a crash left.

        Raises: StorageError: it cannot be created or written.
        """
        self.blocks_dir = cache_dir / "blocks"
        self._quarantine_dir = cache_dir / "quarantine"
        with storage_errors(cache_dir):
            make_private(self.blocks_dir)
        self.index = BlockIndex(cache_dir / "index.db")
        try:
            self.rebuild()
        except BaseException:
            self.index.close()
            raise

    def path(self, fingerprint: bytes, key: BlockKey, group: GroupId) -> Path:
        return block_path(self.blocks_dir, fingerprint, key, group)

    def rebuild(self) -> None:
        """Make the index agree with the files: add rows for files without one, drop rows without a file.

        Effect: also removes temporary files of processes that are gone, and sets aside what is no block.
        """
        self.index.check()
        known = self.index.names()
        seen: set[BlockName] = set()
        with storage_errors(self.blocks_dir):
            for fingerprint, path in self._files():
                if match := _BLOCK_FILE.fullmatch(path.name):
                    name = (fingerprint, BlockKey(bytes.fromhex(match[1])), GroupId(int(match[2])))
                    seen.add(name)
                    if name not in known:
                        self.adopt(fingerprint, path)
                elif match := _TEMPORARY_FILE.fullmatch(path.name):
                    _remove_if_abandoned(path, int(match[1]))
        # Looked at once more: another process may have added a file and its row in the meantime.
        self.index.drop([name for name in known - seen if not self.path(*name).exists()])

    def adopt(self, fingerprint: bytes, path: Path) -> bool:
        """Add the row of a file without one; False if it was no block of this fingerprint, now set aside."""
        try:
            found = parse_header(path)
            if found.fingerprint != fingerprint:
                raise BlockDamaged(f"The block file {path} was written for another model.")
        except BlockDamaged:
            self.set_aside(path)
            return False
        self.index.add([found])
        return True

    def write(self, identity: FileIdentity, payload: memoryview, now_s: float) -> None:
        """Write one block durably, then its row.

        Raises: StorageError: the disk is full or cannot be written; nothing of the block is left.
        """
        header = identity.header
        path = self.path(identity.fingerprint, header.key, header.group)
        with storage_errors(path.parent):
            try:
                num_bytes = _write(path, identity, payload)
            except FileNotFoundError:
                # Another process removed the directory because it was empty.
                num_bytes = _write(path, identity, payload)
        row = FoundBlock(
            fingerprint=identity.fingerprint,
            header=header,
            block_size=identity.block_size,
            num_bytes=num_bytes,
            modified_s=now_s,
        )
        self.index.add([row])

    def remove(self, fingerprint: bytes, key: BlockKey, groups: Iterable[GroupId]) -> None:
        """Remove a block's files, then its rows."""
        names = [(fingerprint, key, group) for group in groups]
        with storage_errors(self.blocks_dir):
            for name in names:
                self.path(*name).unlink(missing_ok=True)
        self.index.drop(names)

    def remove_empty(self) -> None:
        """Remove directories that hold nothing."""
        for directory in _directories(self.blocks_dir):
            for empty in (*_directories(directory), directory):
                with suppress(OSError):  # not empty, or gone
                    empty.rmdir()

    def set_aside(self, path: Path) -> None:
        """Move a damaged file to the quarantine, which keeps the newest few; remove it where that fails."""
        try:
            make_private(self._quarantine_dir)
            path.replace(self._quarantine_dir / f"{path.parent.parent.name[:16]}.{path.name}")
            aside = sorted(self._quarantine_dir.iterdir(), key=lambda file: file.lstat().st_ctime_ns)
            for old in aside[:-MAX_QUARANTINED]:
                old.unlink()
        except OSError:
            with suppress(OSError):
                path.unlink()

    def empty_quarantine(self) -> None:
        """Remove what was set aside: its headers hold token ids."""
        with storage_errors(self._quarantine_dir):
            for file in _listing(self._quarantine_dir):
                file.unlink(missing_ok=True)

    def enforce(self, limit_bytes: int) -> None:
        """Remove blocks until the files fit: longest unused first, and never a parent before its children."""
        while (usage := self.index.usage()).num_bytes > limit_bytes:
            num_excess = (usage.num_bytes - limit_bytes) * usage.num_blocks // usage.num_bytes
            # A part of them at a time, since each that goes may turn its parent into the oldest leaf.
            leaves = self.index.oldest_leaves(1 + num_excess // 8)
            if not leaves:
                return
            for leaf in leaves:
                self.remove(leaf.fingerprint, leaf.key, leaf.groups)

    def close(self) -> None:
        self.index.close()

    def _files(self) -> Iterator[tuple[bytes, Path]]:
        for directory in _directories(self.blocks_dir):
            if _FINGERPRINT.fullmatch(directory.name):
                for shelf in _directories(directory):
                    yield from ((bytes.fromhex(directory.name), file) for file in _listing(shelf))


def _write(path: Path, identity: FileIdentity, payload: memoryview) -> int:
    make_private(path.parent)
    return write_file(path, identity, payload)


@contextmanager
def storage_errors(where: Path) -> Iterator[None]:
    """Turn the operating system's refusals into errors that say what to do."""
    try:
        yield
    except OSError as error:
        raise StorageError(_advice(where, error)) from error


def _advice(where: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"There is no room left for the cache in {where}: free some space, or give it a smaller limit."
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"The cache in {where} cannot be written: {error.strerror}. Choose another cache directory."
    return f"The cache in {where} cannot be used: {error.strerror or error}. Choose another cache directory."


def _directories(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _listing(path: Path) -> list[Path]:
    try:
        return [path / name for name in os.listdir(path)]
    except FileNotFoundError:
        return []


def _remove_if_abandoned(path: Path, process_id: int) -> None:
    with suppress(FileNotFoundError):
        if not _is_alive(process_id) or time.time() - path.lstat().st_mtime > _TEMPORARY_MAX_AGE_S:
            path.unlink()


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
