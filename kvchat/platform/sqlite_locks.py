"""SQLite files that this process has open, and reading them without releasing their locks.

A POSIX lock belongs to a process and a file, and closing any descriptor of the file ends it: another process
would then take itself for the last one and remove the log that this one goes on writing to. So a file that is
open here as a database is read through descriptors that stay open as long as its connections.

Source: "How To Corrupt An SQLite Database File", section 2.2, sqlite.org/howtocorrupt.html.
"""

import os
import sqlite3
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

_Identity = tuple[int, int]

_LOG_PATIENCE_MS = 2000

_lock = Lock()
_num_connections: Counter[_Identity] = Counter()
_descriptors: defaultdict[_Identity, list[int]] = defaultdict(list)
"""What must not be closed yet."""


class TrackedConnection(sqlite3.Connection):
    """A connection whose file can be looked at meanwhile."""

    def __init__(self, path: Path, **options: Any) -> None:
        self._held: _Identity | None = _hold(path)
        try:
            super().__init__(path, **options)
        except BaseException:
            self._let_go()
            raise

    def close(self) -> None:
        super().close()
        self._let_go()

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            _release(held)


def connect(path: Path, *, timeout_s: float) -> sqlite3.Connection:
    """Open a database that is there, for any thread; transactions are written out.

    Raises: FileNotFoundError: it is not there; sqlite3.Error: it cannot be opened.
    """
    return TrackedConnection(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)


def create(path: Path) -> None:
    """Begin an empty file for its owner alone, unless there is one; SQLite's side files get the same mode."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def compact(connection: sqlite3.Connection) -> None:
    """Write a database anew without what was deleted from it, and empty its log.

    SQLite overwrites a deleted row where it lies, but not where it lay before rows were moved to other pages.

    Raises: sqlite3.Error: there is no room, or somebody else has read or written for longer than is waited.
    """
    try:
        connection.execute("VACUUM")
    except sqlite3.Error:
        with suppress(sqlite3.Error):  # what kept it from being written anew is told
            empty_log(connection)
        raise
    empty_log(connection)


def empty_log(connection: sqlite3.Connection) -> None:
    """Bring what the log holds into the database, and empty it.

    Raises: sqlite3.Error: somebody else has read or written for longer than is waited.
    """
    (patience_ms,) = connection.execute("PRAGMA busy_timeout").fetchone()
    connection.execute(f"PRAGMA busy_timeout = {min(patience_ms, _LOG_PATIENCE_MS)}")
    try:
        (is_busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {patience_ms}")
    if is_busy:
        busy = sqlite3.OperationalError("its log is being read by another program")
        busy.sqlite_errorcode, busy.sqlite_errorname = sqlite3.SQLITE_BUSY, "SQLITE_BUSY"
        raise busy


def is_alone(connection: sqlite3.Connection) -> bool:
    """Return whether nobody else has the database open, in this process or another; does not wait.

    Effect: if so, it is for a moment without a log; who opens it then gives it one again.
    """
    (patience_ms,) = connection.execute("PRAGMA busy_timeout").fetchone()
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        connection.execute("PRAGMA journal_mode = DELETE").fetchone()  # refused while anybody is connected
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return False
        raise
    finally:
        connection.execute(f"PRAGMA busy_timeout = {patience_ms}")
    return True


def first_bytes(path: Path, num_bytes: int) -> bytes:
    """Return what a file begins with, fewer bytes if it is shorter.

    Raises: OSError: it cannot be read.
    """
    with _lock:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        identity = _identity(os.fstat(descriptor))
        try:
            return os.pread(descriptor, num_bytes, 0)
        finally:
            if _num_connections[identity]:
                _descriptors[identity].append(descriptor)
            else:
                os.close(descriptor)


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def _hold(path: Path) -> _Identity:
    with _lock:
        identity = _identity(path.stat())
        _num_connections[identity] += 1
        return identity


def _release(identity: _Identity) -> None:
    with _lock:
        _num_connections[identity] -= 1
        if not _num_connections[identity]:
            del _num_connections[identity]
            for descriptor in _descriptors.pop(identity, []):
                os.close(descriptor)
