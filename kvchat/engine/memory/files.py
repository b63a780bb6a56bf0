"""Every operation with which the disk tier reads and changes its directory: the seam where tests stand in.

What survives a loss of power follows from the order of these calls alone: bytes count once their file was
synced, a name counts once its directory was, and a commit of the index once it was a durable one.
"""

import os
import sqlite3
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Protocol

Buffer = bytes | bytearray | memoryview
FIRST_STEPS = (16 << 10, 48 << 10)
STEP = 1 << 26
MAX_PARTS = 1024
"""As many buffers does Linux fill in one call."""


class Files(Protocol):
    """The operating system as the disk tier sees it. Every method may raise OSError."""

    def create(self, path: Path) -> int:
        """Open an empty file for its owner alone to write to, in place of one that is there."""
        ...

    def open(self, path: Path) -> int:
        """Open a file to read; neither follows a link nor waits for a pipe."""
        ...

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write behind what was written; return how many bytes were taken."""
        ...

    def read(self, descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
        """Fill `parts`, one after another, from an offset; return how many bytes there were."""
        ...

    def sync(self, descriptor: int) -> None:
        """Wait until a file's bytes are on the medium."""
        ...

    def close(self, descriptor: int) -> None: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def unlink(self, path: Path) -> None: ...

    def make_dir(self, path: Path) -> None:
        """Create a directory for its owner alone; its parent is there."""
        ...

    def remove_dir(self, path: Path) -> None: ...

    def sync_dir(self, path: Path) -> None:
        """Wait until the names in a directory are on the medium."""
        ...

    def commit(self, connection: sqlite3.Connection) -> None:
        """End the index's transaction; may raise sqlite3.Error."""
        ...

    def boot_id(self) -> str:
        """Name the time since the machine was started; empty where it has no name."""
        ...


class SystemFiles:
    """The real operating system."""

    def create(self, path: Path) -> int:
        return os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def open(self, path: Path) -> int:
        # O_NONBLOCK: a named pipe put in a block's place must not hang the engine.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    def write(self, descriptor: int, data: memoryview) -> int:
        return os.write(descriptor, data)

    def read(self, descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
        return os.preadv(descriptor, parts, offset)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def make_dir(self, path: Path) -> None:
        os.mkdir(path, 0o700)

    def remove_dir(self, path: Path) -> None:
        os.rmdir(path)

    def sync_dir(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""


SYSTEM = SystemFiles()


def make_private(files: Files, path: Path) -> None:
    """Create a directory and its missing parents with mode 0700, and make their names durable."""
    if path.is_dir():
        return
    make_private(files, path.parent)
    try:
        files.make_dir(path)
    except FileExistsError:
        if not path.is_dir():
            raise
        # Another process was faster; its name may not be durable yet.
    files.sync_dir(path.parent)


def write_all(files: Files, descriptor: int, data: Buffer) -> None:
    view = memoryview(data).cast("B")
    while len(view):
        view = view[files.write(descriptor, view) :]


def read_all(files: Files, descriptor: int, parts: Iterable[memoryview]) -> None:
    """Fill `parts`, one after another, from the file's start.

    The first steps are short. To Linux they look like the beginning of a long read, so that it keeps the rest
    of the file in large pages: a single read of the whole file takes twice as long, also when it is repeated.

    Raises: OSError: reading fails, or the file ends before that.
    """
    due = deque(filter(len, parts))
    offset = 0
    for size in chain(FIRST_STEPS, repeat(STEP)):
        if not due:
            return
        step = _cut(due, size)
        _fill(files, descriptor, step, offset)
        offset += sum(map(len, step))


def _cut(due: deque[memoryview], size: int) -> list[memoryview]:
    """Take the first `size` bytes, or what there is, in at most as many pieces as one call fills."""
    taken: list[memoryview] = []
    while due and size and len(taken) < MAX_PARTS:
        part = due.popleft()
        if len(part) > size:
            due.appendleft(part[size:])
            part = part[:size]
        taken.append(part)
        size -= len(part)
    return taken


def _fill(files: Files, descriptor: int, parts: list[memoryview], offset: int) -> None:
    due = deque(parts)
    while due:
        num_read = files.read(descriptor, list(due), offset)
        if num_read == 0:
            raise OSError(0, "it ended early")
        offset += num_read
        while due and num_read >= len(due[0]):
            num_read -= len(due.popleft())
        if num_read:
            due[0] = due[0][num_read:]


def unlink_if_there(files: Files, path: Path) -> None:
    try:
        files.unlink(path)
    except FileNotFoundError:
        pass
