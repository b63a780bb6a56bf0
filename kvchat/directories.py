"""Directories and small files for their owner alone."""

import os
import secrets
from contextlib import suppress
from pathlib import Path


def make_private(path: Path) -> Path:
    """Create a directory and its missing parents with mode 0700, make their names durable, and return it.

    An existing directory stays as it is.

    Raises:
        OSError: one of them cannot be created.
    """
    if not path.is_dir():
        make_private(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)  # another process may have been faster
        sync(path.parent)
    return path


def write_private(file: Path, data: bytes) -> None:
    """Write a file with mode 0600, whole or not at all; durable when this returns. It replaces another.

    Raises:
        OSError: it cannot be written; what was there is there still, and nothing is left behind.
    """
    make_private(file.parent)
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        unfinished.replace(file)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    sync(file.parent)


def sync(path: Path) -> None:
    """Wait until the names in a directory are on the medium."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
