"""Backups of the session database: a copy a day, the one before it, and damaged files that were set aside."""

import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path

from kvchat.session.database.silent_damage import refuse_damage

BACKUP_AGE_S = 86_400.0
_PATIENCE_S = 5.0


def backup_paths(path: Path) -> tuple[Path, Path]:
    """Return the places of the backup and of the one before it."""
    return path.with_name(path.name + ".backup"), path.with_name(path.name + ".backup.1")


def has_backup(path: Path) -> bool:
    return any(copy.exists() for copy in backup_paths(path))


def back_up(connection: sqlite3.Connection, path: Path) -> None:
    """Keep a copy of a database, unless there is one of today; the one before stays beside it.

    Raises:
        DamageFound: the database is damaged, and would take the place of a good copy.
        sqlite3.Error, OSError: it cannot be written, or another process is at its copies; they are as before.
    """
    newest, older = backup_paths(path)
    with suppress(FileNotFoundError):
        if abs(time.time() - newest.stat().st_mtime) < BACKUP_AGE_S:
            return
    refuse_damage(connection)
    # What is deleted meanwhile is in the copy: whoever deletes it waits for this, and removes the copy.
    with alone(path, patience_s=0.0):
        new = path.with_name(path.name + ".backup.new")
        new.unlink(missing_ok=True)
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        connection.execute("VACUUM INTO ?", (str(new),))
        with suppress(FileNotFoundError):
            newest.replace(older)
        new.replace(newest)


def forget_backups(path: Path) -> None:
    """Remove the copies, because something was deleted that must not live on in them, and what a copy, a
    conversion or a salvage that was killed has left.

    Raises: OSError: one cannot be removed, or another process is at them.
    """
    with alone(path, patience_s=_PATIENCE_S):
        unfinished = (beside(path, suffix) for suffix in (".backup.new", ".converting", ".new"))
        for copy in (*backup_paths(path), *unfinished):
            for suffix in ("", "-journal", "-wal", "-shm"):
                beside(copy, suffix).unlink(missing_ok=True)
        for copy in path.parent.glob("tmp*/copy.db"):  # see `salvage`
            shutil.rmtree(copy.parent)


def damaged_copies(path: Path) -> list[Path]:
    """Return the damaged databases and logs that were set aside, which nothing else touches."""
    return sorted(path.parent.glob(path.name + ".damaged-*"))


def beside(path: Path, suffix: str) -> Path:
    """Return the file of the same name with a suffix behind it."""
    return path.with_name(path.name + suffix)


@contextmanager
def alone(path: Path, patience_s: float = inf) -> Iterator[None]:
    """Keep other processes from recovering a database, and from its copies.

    Raises: OSError: one was at it for longer.
    """
    until_s = time.monotonic() + patience_s
    descriptor = os.open(beside(path, ".recovery"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    raise
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)
