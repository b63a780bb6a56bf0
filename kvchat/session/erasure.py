"""Deleted words taken out of every file that may still hold them.

SQLite takes a deleted row out of its table and overwrites it, and leaves words in three places: in the index
of words, whose entries are only said to be gone; on pages between which rows were moved; and in its log.
Copies of the database have them too. An empty file beside it says that this is still to be done, so that
whoever ends next does it where a process was killed.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from kvchat import sqlite_files
from kvchat.session import recovery


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
    owed_ns = _mark(path).stat().st_mtime_ns if is_owed(path) else None
    try:
        if indexes_words:
            connection.execute("INSERT INTO turns_fts (turns_fts) VALUES ('optimize')")
    finally:
        sqlite_files.compact(connection)
    # Last: a copy that was begun before the deletion is whole by now, and goes too.
    recovery.forget_backups(path)
    if owed_ns is not None and is_owed(path) and _mark(path).stat().st_mtime_ns == owed_ns:
        _mark(path).unlink(missing_ok=True)  # nobody has deleted more meanwhile


def remains(path: Path, *, is_unerased: bool = False) -> Sequence[str]:
    """Return in which files deleted words may still be read, each with what to do about it.

    Args:
        is_unerased: whether erasing has failed, also where nothing could be noted.
    """
    found = []
    if is_unerased or is_owed(path):
        copies = [copy for copy in recovery.backup_paths(path) if copy.exists()]
        names = ", ".join(map(str, (path, path.with_name(path.name + "-wal"), *copies)))
        found.append(
            f"deleted words may still be in {names}: they go when the next kvchat that has stored something"
            " ends; free some space and close what else reads these files"
        )
    found += [
        f"deleted words may still be in {copy}, kept since the database was damaged; remove it if nothing is"
        " missing"
        for copy in recovery.damaged_copies(path)
    ]
    return found


def _mark(path: Path) -> Path:
    return path.with_name(path.name + ".unerased")
