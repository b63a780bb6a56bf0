"""The shelves that block files stand on: what lies there, and what the operating system says of them."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def block_files(blocks_dir: Path) -> Iterator[tuple[bytes, Path]]:
    """Yield whatever lies where block files would, with the fingerprint that it lies under."""
    for directory in directories_in(blocks_dir):
        if _FINGERPRINT.fullmatch(directory.name):
            for shelf in directories_in(directory):
                yield from ((bytes.fromhex(directory.name), file) for file in _listing(shelf))


def directories_in(path: Path) -> list[Path]:
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
