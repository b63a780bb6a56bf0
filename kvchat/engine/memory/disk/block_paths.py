"""The shelves that block files stand on: what lies there, and what the operating system says of them."""

import errno
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from kvchat.engine.memory.disk.block_file import DueFile, write_files
from kvchat.engine.memory.disk.io import Files, at_once, make_all_private
from kvchat.errors import StorageError

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


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


def block_files(
    files: Files, blocks_dir: Path, on_unlisted: Callable[[Path, OSError], object]
) -> Iterator[tuple[bytes, Path]]:
    """Yield whatever lies where block files would, with the fingerprint that it lies under.

    Args:
        on_unlisted: told each directory in there whose names cannot be read now.

    Raises: OSError: `blocks_dir` itself cannot be read.
    """
    for directory in directories_in(files, blocks_dir):
        if _FINGERPRINT.fullmatch(directory.name):
            for shelf in _told(directory, partial(directories_in, files), on_unlisted):
                for file in _told(shelf, partial(_listing, files), on_unlisted):
                    yield bytes.fromhex(directory.name), file


def directories_in(files: Files, path: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in files.entries(path) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _listing(files: Files, path: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in files.entries(path)]
    except FileNotFoundError:
        return []


def _told(
    path: Path, read: Callable[[Path], list[Path]], on_unlisted: Callable[[Path, OSError], object]
) -> list[Path]:
    try:
        return read(path)
    except OSError as error:
        on_unlisted(path, error)
        return []


def remove_empty_shelves(files: Files, blocks_dir: Path) -> None:
    """Remove directories that hold nothing."""
    with suppress(OSError):  # one that cannot be listed stays
        for directory in directories_in(files, blocks_dir):
            shelves: list[Path] = []
            with suppress(OSError):
                shelves = directories_in(files, directory)
            for empty in (*shelves, directory):
                with suppress(OSError):  # not empty, or gone
                    files.remove_dir(empty)


def write_on_shelves(files: Files, due: Sequence[DueFile]) -> None:
    """Write files durably, and the directories that they need.

    Raises: StorageError: they cannot be written.
    """
    shelves = [one.path.parent for one in due]
    with storage_errors(shelves[0]):
        try:
            make_all_private(files, shelves)
            write_files(files, due)
        except FileNotFoundError:
            # Another process removed a directory because it was empty.
            make_all_private(files, shelves)
            write_files(files, due)


def sync_shelves(files: Files, shelves: Iterable[Path]) -> None:
    """Make it durable what stands on shelves, and what is gone from them; waits for all side by side."""

    def sync(shelf: Path) -> None:
        with suppress(FileNotFoundError):
            files.sync_dir(shelf)

    at_once(sync, list(shelves))
