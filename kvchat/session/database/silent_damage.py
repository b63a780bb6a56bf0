"""Damage that SQLite does not report: an index without the entry of a row, a row without its text.

Such an index refuses what the rows allow, and hides rows. Both are checked only where a refusal or a gap is
met, so that a sound database pays nothing.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from kvchat.session.tree import Turn


class DamageFound(sqlite3.DatabaseError):
    """Rows and indexes that do not agree; a new file with the rows helps."""


def damage_mark(path: Path) -> Path:
    """Return the file that says that a database was found to be damaged, for the next start to salvage it."""
    return path.with_name(path.name + ".damaged")


def refuse_damage(connection: sqlite3.Connection) -> None:
    """Read the whole file, and raise if its rows and indexes do not agree.

    Raises: DamageFound: they do not; sqlite3.Error: it cannot be read.
    """
    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise DamageFound(found)


def refuse_hidden(
    connection: sqlite3.Connection, table: str, column: str, value: str | int, num_found: int = 0
) -> None:
    """Raise if a table has other rows with a value than those that an index led to. Reads all of the table.

    Raises: DamageFound: it has.
    """
    query = f"SELECT count(*) FROM {table} NOT INDEXED WHERE {column} = ?"
    if connection.execute(query, (value,)).fetchone()[0] != num_found:
        raise DamageFound(f"an index of {table} lacks an entry")


def refuse_no_text(row: sqlite3.Row, *columns: str) -> None:
    """Raise if a row holds anything but text in some columns, which no statement can have stored.

    Raises: DamageFound: it does.
    """
    for column in columns:
        if not isinstance(row[column], str):
            raise DamageFound(f"a row has no {column}")


def refuse_broken(what: str, columns: Iterable[str]) -> None:
    """Raise if some columns of a row are not what was written.

    Raises: DamageFound: some are.
    """
    if columns := sorted(columns):
        raise DamageFound(f"{what} has another {', '.join(columns)} than was stored")


def refuse_gaps(connection: sqlite3.Connection, turns: Sequence[Turn], leaves: Iterable[str] = ()) -> None:
    """Raise if damage is why turns were found without a parent, or without a leaf that must be among them.

    Raises: DamageFound: it is; sqlite3.Error: the file cannot be read.
    """
    wanted = {turn.parent_id for turn in turns if turn.parent_id is not None}
    if not wanted.union(leaves) <= {turn.id for turn in turns}:
        refuse_damage(connection)


def refuse_hidden_turns(connection: sqlite3.Connection, session_id: str, turns: Sequence[Turn]) -> None:
    """Raise if damage is why these are all turns that were found of a session.

    Raises: DamageFound: it is; sqlite3.Error: the file cannot be read.
    """
    query = "SELECT leaf_id FROM branches WHERE session_id = ? AND leaf_id IS NOT NULL"
    refuse_gaps(connection, turns, (row["leaf_id"] for row in connection.execute(query, (session_id,))))
    if not turns:
        refuse_hidden(connection, "turns", "session_id", session_id)
