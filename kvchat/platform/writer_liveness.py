"""Writers: which processes are writing, and whether they are still alive.

Every store that writes holds a lock (flock) on a small file named by its id, and unfinished work carries that
id: a growing answer, a block on its way to disk. The kernel releases the lock when the process ends, however
it ends, so a killed writer is told from a slow one without process ids, which are reused and differ between
containers.
"""

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path
from threading import Lock

from kvchat.platform.private_files import make_private

_SUFFIX = ".lock"


class Writers:
    """Locks of the living writers of one store, in one directory; None: nobody else can reach the store."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._guard = Lock()
        self._own: tuple[str, int | None] | None = None

    def own_id(self) -> str:
        """Return this writer's id; the first call takes its lock and removes the files of dead writers."""
        with self._guard:
            if self._own is None:
                self._own = self._begin()
            return self._own[0]

    def is_own(self, writer: str) -> bool:
        own = self._own
        return own is not None and own[0] == writer

    def is_alive(self, writer: str) -> bool:
        """Return whether the process that holds this writer's lock still runs."""
        return self._directory is not None and _is_locked(self._directory / (writer + _SUFFIX))

    def close(self) -> None:
        with self._guard:
            if self._own is None:
                return
            name, descriptor = self._own
            self._own = None
            if self._directory is None or descriptor is None:
                return
            with suppress(OSError):
                (self._directory / (name + _SUFFIX)).unlink()
            os.close(descriptor)

    def _begin(self) -> tuple[str, int | None]:
        name = secrets.token_hex(8)
        if self._directory is None:
            return name, None
        make_private(self._directory)
        _sweep(self._directory)
        hidden = self._directory / (name + ".new")
        descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        # Locked before it has its name, so that no sweep ever finds it unlocked.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        hidden.rename(self._directory / (name + _SUFFIX))
        return name, descriptor


def is_any_alive(directory: Path) -> bool:
    """Return whether any writer of the store runs whose locks are in this directory."""
    return any(_is_locked(file) for file in directory.glob("*" + _SUFFIX))


def _sweep(directory: Path) -> None:
    for file in directory.glob("*" + _SUFFIX):
        if not _is_locked(file):
            with suppress(OSError):
                file.unlink()


def _is_locked(file: Path) -> bool:
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return False
    try:
        # Shared, so that two who look at once do not take each other for the writer.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
