"""Directories for their owner alone. Files in them are opened with mode 0600 by whoever writes them."""

import os
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


def sync(path: Path) -> None:
    """Wait until the names in a directory are on the medium."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
