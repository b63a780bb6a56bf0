"""Private directories and small files, for their owner alone."""

import errno
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time

from kvchat.errors import KvchatError

STALE_S = 60.0
"""Nobody takes so long to write a small file."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Codes of errors that more room on the disk would mend."""
_UNFINISHED = re.compile(r"\..+\.([0-9a-f]{8}|\d+\.tmp)")
"""Names that files have until they are whole; an older kvchat wrote those with `.tmp`."""


class NamedFiles:
    """Files and names of the operating system, in the order that they must survive in; tests replace methods.

    Every method may raise OSError. Bytes survive a loss of power once their file was synced, a name once its
    directory was.
    """

    def create(self, path: Path) -> int:
        """Open an empty file for its owner alone to write to, in place of one that is there."""
        return os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def write(self, descriptor: int, parts: Sequence[memoryview]) -> int:
        """Write `parts`, one after another, behind what was written; return how many bytes were taken."""
        return os.writev(descriptor, parts)

    def sync(self, descriptor: int) -> None:
        """Wait until a file's bytes are on the medium."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def entries(self, path: Path) -> Sequence[os.DirEntry[str]]:
        with os.scandir(path) as entries:
            return list(entries)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def make_dir(self, path: Path) -> None:
        """Create a directory for its owner alone; its parent is there."""
        os.mkdir(path, 0o700)

    def sync_dir(self, path: Path) -> None:
        """Wait until the names in a directory are on the medium."""
        sync(path)


SYSTEM_NAMES = NamedFiles()


def make_private(path: Path, files: NamedFiles = SYSTEM_NAMES) -> Path:
    """Create a directory and its missing parents with mode 0700, make their names durable, and return it.

    An existing directory stays as it is.

    Raises:
        OSError: one of them cannot be created.
    """
    if not path.is_dir():
        make_private(path.parent, files)
        try:
            files.make_dir(path)
        except FileExistsError:
            if not path.is_dir():
                raise
            # Another process was faster; its name may not be durable yet.
        files.sync_dir(path.parent)
    return path


@contextmanager
def new_private(file: Path, files: NamedFiles = SYSTEM_NAMES) -> Iterator[int]:
    """Give the descriptor of a file with mode 0600 that appears under its name whole, or not at all.

    Effect: it replaces another, and is durable at the end of the block.

    Raises:
        OSError: it cannot be written; what was there is there still, and nothing is left behind.
    """
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        descriptor = files.create(unfinished)
        try:
            yield descriptor
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(unfinished, file)
    except BaseException:
        with suppress(OSError):
            files.unlink(unfinished)
        raise
    files.sync_dir(file.parent)


def write_private(file: Path, data: bytes, files: NamedFiles = SYSTEM_NAMES) -> None:
    """Write a file as `new_private` does, in a directory for its owner alone that need not be there."""
    make_private(file.parent, files)
    with new_private(file, files) as descriptor:
        due = memoryview(data)
        while due:
            due = due[files.write(descriptor, [due]) :]


def remove_private(file: Path, files: NamedFiles = SYSTEM_NAMES) -> None:
    """Remove a file, and make it durable that it is gone; nothing happens if there is none.

    Raises:
        OSError: it cannot be removed.
    """
    try:
        files.unlink(file)
    except FileNotFoundError:
        return
    files.sync_dir(file.parent)


def remove_unfinished(directory: Path, files: NamedFiles = SYSTEM_NAMES) -> None:
    """Remove what killed processes have left half written of a directory's files, as far as that can be."""
    with suppress(OSError):
        for entry in files.entries(directory):
            if _UNFINISHED.fullmatch(entry.name) and time() - entry.stat().st_mtime > STALE_S:
                with suppress(OSError):  # another process was faster
                    files.unlink(Path(entry.path))


@contextmanager
def system_errors_as(kind: type[KvchatError], problem: str, advice: str = "") -> Iterator[None]:
    """Raise what the system refuses as an error of ours: the problem, the system's reason, what to do."""
    try:
        yield
    except OSError as error:
        raise kind(f"{problem}: {error.strerror or error}{advice}") from error


def sync(path: Path) -> None:
    """Wait until the names in a directory, or the bytes of a file, are on the medium."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
