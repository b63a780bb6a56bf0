"""Rewrite of the session database with its rows in the other layout: turns encryption on and off.

The new file is made beside the old one and takes its name in one step, so that one of the two is whole at any
time. The old one is locked meanwhile, and no other process may use it.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from kvchat.errors import StorageError
from kvchat.platform import sqlite_locks
from kvchat.platform.private_files import sync
from kvchat.session.database.database import Database
from kvchat.session.database.plain_tables import Tables

_BUSY_S = 2.0
_TABLES = ("sessions", "branches", "turns", "pieces")
_ROWS_AT_ONCE = 256


def rewrite(
    path: Path, source: Tables, target: Tables, copy_beside: Callable[[], object] = lambda: None
) -> None:
    """Replace a database by one that holds the same rows in another way.

    Args:
        copy_beside: writes what belongs to the database in the other way too; called while nobody else has
            the database open, so that nothing is put beside it meanwhile.

    Effect: copies of the old file stay, which hold its rows in the old way.

    Raises: StorageError: another process has it open, it is damaged, or cannot be written; it is as before.
    """
    Database(path, source).close()  # brings an older or damaged one forward first
    new = converting_path(path)
    try:
        with _alone(path, source) as old:
            new.unlink(missing_ok=True)
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            _fill(new, target, old)
            copy_beside()
            new.rename(path)
            sync(path.parent)
    except (sqlite3.Error, OSError) as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        # A title or name that does not open is NULL, which no new table takes.
        is_lost = isinstance(error, sqlite3.IntegrityError)
        remedy = "; start kvchat, open that session, and try again" if is_lost else ""
        raise StorageError(f"{path} was not converted and is as before: {error}{remedy}") from error


def converting_path(path: Path) -> Path:
    """Return where the new file is until it is whole."""
    return path.with_name(path.name + ".converting")


@contextmanager
def _alone(path: Path, tables: Tables) -> Iterator[sqlite3.Connection]:
    """Open a database and keep everybody else out."""
    with closing(sqlite_locks.connect(path, timeout_s=_BUSY_S)) as connection:
        connection.text_factory = lambda data: data.decode(errors="replace")
        tables.show(connection)
        try:
            # Refused while anybody else is connected; and without a log nothing stays behind in one.
            connection.execute("PRAGMA journal_mode = DELETE").fetchone()
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            raise StorageError(
                f"{path} is in use by another kvchat, or by this one twice; close it and try again"
            ) from error
        yield connection


def _fill(new: Path, tables: Tables, old: sqlite3.Connection) -> None:
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        tables.migrate(connection, new)
        tables.show(connection)
        connection.execute("BEGIN IMMEDIATE")
        for table in _TABLES:
            names = [column[1] for column in connection.execute(f"PRAGMA table_info({table})")]
            rows = old.execute(f"SELECT {', '.join(names)} FROM {table}")
            statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
            while part := rows.fetchmany(_ROWS_AT_ONCE):
                connection.executemany(statement, part)
        connection.execute("COMMIT")
