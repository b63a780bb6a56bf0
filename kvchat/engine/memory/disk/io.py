"""Every operation with which the disk tier reads and changes its directory: the seam where tests stand in.

What survives a loss of power follows from the order of these calls alone: bytes count once their file was
synced, a name counts once its directory was, and a commit of the index once it was a durable one.
"""

import errno
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fcntl import F_GETFL, F_SETFL, fcntl
from itertools import chain, repeat
from pathlib import Path
from typing import TypeVar

from kvchat.engine.memory.aligned_memory import PAGE, ThreadRun
from kvchat.errors import StorageError
from kvchat.platform.private_files import NO_ROOM, NamedFiles, make_private

Buffer = bytes | bytearray | memoryview
FIRST_STEPS = (16 << 10, 48 << 10)
STEP = 1 << 26
READ_AHEAD = ((0, 16), (16, 48), (64, 4), (320, 4), (1344, 4), (3392, 4))
"""Where to look, and how far, in KiB, so that Linux reads ahead in steps of at most 4 MiB."""
LEAST_DIRECT_BYTES = 1 << 18
O_DIRECT = getattr(os, "O_DIRECT", 0)
MAX_WAITING = 16
"""Threads that wait for the medium at one time."""
_PIECE_BYTES = 1 << 16


Identity = tuple[int, int]
"""Device and inode of a file."""


Item = TypeVar("Item")


class SystemFiles(NamedFiles):
    """The operating system as the disk tier sees it. Every method may raise OSError.

    Args:
        gives_descriptors: whether what `open` returns may be read without `read`.
    """

    gives_descriptors = True

    def open(self, path: Path) -> int:
        """Open a file to read; neither follows a link nor waits for a pipe."""
        # O_NONBLOCK: a named pipe put in a block's place must not hang the engine.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    def write(self, descriptor: int, parts: Sequence[memoryview]) -> int:
        return _write_past_the_cache(descriptor, parts) or super().write(descriptor, parts)

    def identity(self, path: Path) -> Identity | None:
        """Return which file has this name, links followed; None if none has. Not being told is an error."""
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_dev, status.st_ino

    def read_ahead(self, path: Path) -> bool:
        """Have a file that is read soon read into the system's cache, without waiting for it; True if it is
        there already. May do nothing.
        """
        if not hasattr(os, "RWF_NOWAIT"):
            return True
        with suppress(OSError):
            descriptor = self.open(path)
            try:
                return not _begin_to_read(descriptor)
            finally:
                self.close(descriptor)
        return True

    def read(self, descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
        """Fill `parts`, one after another, from an offset; return how many bytes there were."""
        return os.preadv(descriptor, parts, offset)

    def remove_dir(self, path: Path) -> None:
        os.rmdir(path)

    def commit(self, connection: sqlite3.Connection) -> None:
        """End the index's transaction; may raise sqlite3.Error."""
        connection.execute("COMMIT")

    def boot_id(self) -> str:
        """Name the time since the machine was started; empty where it has no name."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""


SYSTEM = SystemFiles()
_gather_run = ThreadRun()


@contextmanager
def storage_errors(where: Path) -> Iterator[None]:
    """Turn the operating system's refusals into errors that say what to do."""
    try:
        yield
    except OSError as error:
        raise StorageError(_advice(where, error)) from error


def _advice(where: Path, error: OSError) -> str:
    if error.errno in NO_ROOM:
        return f"There is no room left for the cache in {where}: free some space, or give it a smaller limit."
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"The cache in {where} cannot be written: {error.strerror}. Choose another cache directory."
    return f"The cache in {where} cannot be used: {error.strerror or error}. Choose another cache directory."


def subdirectories(files: SystemFiles, path: Path) -> list[Path]:
    """Return the directories in a directory; none if it is not there."""
    try:
        return [Path(entry.path) for entry in files.entries(path) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def sync_directories(files: SystemFiles, directories: Iterable[Path]) -> None:
    """Make names in directories durable, and that names are gone; waits for all side by side."""

    def sync(directory: Path) -> None:
        with suppress(FileNotFoundError):
            files.sync_dir(directory)

    at_once(sync, list(directories))


def make_all_private(files: SystemFiles, paths: Iterable[Path]) -> None:
    """Do what `make_private` does for several directories; names in one parent become durable at once."""
    parents: dict[Path, None] = {}
    for path in dict.fromkeys(paths):
        if path.is_dir():
            continue
        make_private(path.parent, files)
        try:
            files.make_dir(path)
        except FileExistsError:
            if not path.is_dir():
                raise
        parents[path.parent] = None
    for parent in parents:
        files.sync_dir(parent)


def at_once(wait: Callable[[Item], None], items: Sequence[Item]) -> None:
    """Wait for several things at the medium side by side: a file system makes what waits together durable
    with fewer flushes. Returns when none waits any more.

    Raises: OSError: what the first of them to fail, in their order, was refused with.
    """
    if len(items) < 2:
        for item in items:
            wait(item)
        return
    with ThreadPoolExecutor(min(len(items), MAX_WAITING)) as threads:
        for _ in threads.map(wait, items):
            pass


def write_all(files: SystemFiles, descriptor: int, parts: Iterable[Buffer]) -> None:
    """Write a few `parts`, one after another, in one call where the system takes them all.

    To write a file's head alone first takes Linux up to ten times as long: it keeps the rest in small pages.

    Raises: OSError: a part of the bytes was not written.
    """
    due = deque(view for part in parts if len(view := memoryview(part).cast("B")))
    while due:
        _drop(due, files.write(descriptor, list(due)))


def read_whole(files: SystemFiles, path: Path) -> bytes:
    """Return what a small file holds.

    Raises: OSError: it cannot be opened or read.
    """
    descriptor = files.open(path)
    try:
        found = bytearray()
        piece = memoryview(bytearray(_PIECE_BYTES))
        while num_read := files.read(descriptor, [piece], len(found)):
            found += piece[:num_read]
        return bytes(found)
    finally:
        files.close(descriptor)


def read_all(files: SystemFiles, descriptor: int, parts: Iterable[memoryview]) -> None:
    """Fill a few `parts`, one after another, from the file's start.

    The first steps are short. To Linux they look like the beginning of a long read, so that it keeps the rest
    of the file in large pages: a single read of the whole file takes twice as long, also when it is repeated.

    Raises: OSError: reading fails, or the file ends before that.
    """
    due = deque(filter(len, parts))
    steps = chain(FIRST_STEPS, repeat(STEP))
    offset = 0
    while due:
        num_read = files.read(descriptor, _first(due, next(steps)), offset)
        if num_read == 0:
            raise OSError(0, "it ended early")
        offset += num_read
        _drop(due, num_read)


def _first(parts: Iterable[memoryview], num_bytes: int) -> list[memoryview]:
    """Return views of the first bytes, or of what there is."""
    first: list[memoryview] = []
    for part in parts:
        if num_bytes <= 0:
            break
        first.append(part[:num_bytes])
        num_bytes -= len(part)
    return first


def _drop(due: deque[memoryview], num_bytes: int) -> None:
    """Take the first bytes off."""
    while due and num_bytes >= len(due[0]):
        num_bytes -= len(due.popleft())
    if num_bytes:
        due[0] = due[0][num_bytes:]


def _write_past_the_cache(descriptor: int, parts: Sequence[memoryview]) -> int:
    """Write whole pages of a large file straight to the medium; 0 where that is not to be had.

    What is saved is on the device still, and is seldom read soon. To find room for it in the system's cache
    takes up to twenty times the processor time of writing it, at the expense of decoding.
    """
    num_bytes = sum(map(len, parts)) & -PAGE
    if num_bytes < LEAST_DIRECT_BYTES or not O_DIRECT or os.lseek(descriptor, 0, os.SEEK_CUR) % PAGE:
        return 0
    gathered = _gathered(parts, num_bytes)
    flags = fcntl(descriptor, F_GETFL)
    try:
        fcntl(descriptor, F_SETFL, flags | O_DIRECT)
        return os.write(descriptor, gathered)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that cannot
            raise
        return 0
    finally:
        fcntl(descriptor, F_SETFL, flags)


def _gathered(parts: Iterable[memoryview], num_bytes: int) -> memoryview:
    """Return the first bytes of `parts` in one run from the start of a page.

    Effect: other threads go on meanwhile, which they do not where one view is assigned to another.
    """
    import numpy as np  # by who writes large files: most commands write none

    run = _gather_run.take(num_bytes)
    target = np.frombuffer(run, np.uint8)
    start = 0
    for part in parts:
        piece = part[: num_bytes - start]
        np.copyto(target[start : start + len(piece)], np.frombuffer(piece, np.uint8))
        start += len(piece)
    return run


def _begin_to_read(descriptor: int) -> bool:
    """Make Linux read ahead; False if the file is in its cache.

    It does so as if a long read had begun, each step where the one before makes it look.

    A read that may not wait fails at what is not there yet, and has it fetched. Unlike `posix_fadvise` this
    keeps files in large pages.
    """
    for offset, length in READ_AHEAD:
        with suppress(BlockingIOError):
            os.preadv(descriptor, [bytearray(length << 10)], offset << 10, os.RWF_NOWAIT)
            return offset > 0  # it is there already, or ends here
    return True


def unlink_if_there(files: SystemFiles, path: Path) -> None:
    with suppress(FileNotFoundError):
        files.unlink(path)
