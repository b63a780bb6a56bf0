"""Erasure: removes deleted words from every file that may still hold them.

SQLite takes a deleted row out of its table and overwrites it, and leaves words in three places: the full-text
index, whose entries are only marked; pages between which rows were moved; and its log. Backups of the
database have them too. An empty file beside it marks an erasure as due, so that the next process to end
completes it where one was killed.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kvchat.platform import sqlite_locks
from kvchat.session.database import backups

_LONG_BYTES = 16 << 20
"""Some 0.3 s of optimize and VACUUM, during which nobody else can write."""


def owe(path: Path) -> None:
    """Note that words are about to be deleted.

    Raises: OSError: it cannot be written.
    """
    _mark(path).touch(0o600)


def is_owed(path: Path) -> bool:
    return _mark(path).exists()


def erase(connection: sqlite3.Connection, path: Path, *, indexes_words: bool) -> None:
    """Write a database anew without what was deleted, empty its log, and remove its copies. O(all).

    Args:
        indexes_words: whether the index of words is in the file.

    Raises: sqlite3.Error, OSError: some of it could not be done, and is still owed.
    """
    owed_ns = _owed_ns(path)
    try:
        if indexes_words:
            connection.execute("INSERT INTO turns_fts (turns_fts) VALUES ('optimize')")
    finally:
        sqlite_locks.compact(connection)
    # Last: a copy that was begun before the deletion is whole by now, and goes too.
    backups.forget_backups(path)
    if owed_ns is not None and _owed_ns(path) == owed_ns:
        _mark(path).unlink(missing_ok=True)  # nobody has deleted more meanwhile


def is_long(path: Path) -> bool:
    """Whether erasing takes so long that others' writes would wait for it noticeably."""
    return path.stat().st_size > _LONG_BYTES


def may_be_copied(path: Path, since: float) -> bool:
    """Whether a copy may hold what was stored at or after a time."""
    for copy in backups.backup_paths(path):
        with suppress(FileNotFoundError):
            if copy.stat().st_mtime >= since:
                return True
    return False


def remains(path: Path, *, is_unerased: bool = False) -> Sequence[str]:
    """Return in which files deleted words may still be read, each with what to do about it.

    Args:
        is_unerased: whether erasing has failed, also where nothing could be noted.
    """
    found = []
    if is_unerased or is_owed(path):
        copies = [copy for copy in backups.backup_paths(path) if copy.exists()]
        names = ", ".join(map(str, (path, path.with_name(path.name + "-wal"), *copies)))
        found.append(
            f"deleted words may still be in {names}: they go when the last kvchat that uses them"
            " ends; free some space and close what else reads these files"
        )
    found += [
        f"deleted words may still be in {copy}, kept since the database was damaged; remove it if nothing is"
        " missing"
        for copy in backups.damaged_copies(path)
    ]
    return found


def _owed_ns(path: Path) -> int | None:
    """Return when words were last deleted. Who else erases may remove the mark at any time."""
    with suppress(FileNotFoundError):
        return _mark(path).stat().st_mtime_ns
    return None


def _mark(path: Path) -> Path:
    return path.with_name(path.name + ".unerased")
