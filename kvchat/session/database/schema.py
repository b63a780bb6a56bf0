"""The tables of the session database.

`VERSION` is in `PRAGMA user_version`. The statements stay as they are: a table that is not as they create it
is known for damage, and a damaged first page is replaced by that of a new database (see `salvage`).

    sessions    one conversation; `namespace`: whose blocks it may use; `verified`: what was found of its KV;
                `adapter`: the directory of the LoRA that it was computed with; `digests` of its columns;
                `lost`: columns that are empty because of damage
    branches    a named leaf of a session's tree
    turns       one message; `token_ids` are u32le; `digest` covers what must not change, `parts` each part of
                it (see `digests`); `repaired`: a part was rebuilt from another
    pieces      what an unfinished answer has grown by; folded into its turn when it ends; `place`: how many
                pieces come before
    turns_fts   full-text index over the text of finished turns
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

from kvchat.errors import StorageError
from kvchat.session.database.silent_damage import DamageFound

VERSION = 5
"""What 0.1.0 wrote; no release has written an earlier one."""

_CREATE = (
    """
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        system TEXT NOT NULL,
        model TEXT NOT NULL,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        active_branch TEXT NOT NULL,
        pinned INTEGER NOT NULL DEFAULT 0
    ) STRICT
    """,
    "CREATE INDEX sessions_by_title ON sessions (title)",
    # A parent's deletion is never cascaded: a chain of ten thousand turns is deeper than SQLite cascades.
    """
    CREATE TABLE turns (
        num INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        session_id TEXT NOT NULL REFERENCES sessions (id),
        parent_id TEXT REFERENCES turns (id) DEFERRABLE INITIALLY DEFERRED,
        role TEXT NOT NULL,
        text TEXT NOT NULL,
        reasoning TEXT NOT NULL,
        token_ids BLOB,
        finish TEXT NOT NULL,
        created_at REAL NOT NULL,
        model TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        tokenizer TEXT NOT NULL,
        stats TEXT NOT NULL,
        exact INTEGER NOT NULL,
        starts_over INTEGER NOT NULL,
        writer TEXT NOT NULL,
        digest BLOB
    ) STRICT
    """,
    "CREATE INDEX turns_by_session ON turns (session_id, num)",
    "CREATE INDEX turns_by_parent ON turns (parent_id)",
    "CREATE INDEX turns_unfinished ON turns (session_id) WHERE finish = 'partial'",
    """
    CREATE TABLE pieces (
        num INTEGER PRIMARY KEY,
        turn_num INTEGER NOT NULL REFERENCES turns (num) ON DELETE CASCADE,
        token_ids BLOB NOT NULL,
        text TEXT NOT NULL,
        reasoning TEXT NOT NULL
    ) STRICT
    """,
    "CREATE INDEX pieces_by_turn ON pieces (turn_num, num)",
    """
    CREATE TABLE branches (
        session_id TEXT NOT NULL REFERENCES sessions (id),
        name TEXT NOT NULL,
        leaf_id TEXT REFERENCES turns (id) DEFERRABLE INITIALLY DEFERRED,
        updated_at REAL NOT NULL,
        PRIMARY KEY (session_id, name)
    ) STRICT
    """,
    "CREATE INDEX branches_by_leaf ON branches (leaf_id)",
    """
    CREATE VIRTUAL TABLE turns_fts
    USING fts5 (text, content = 'turns', content_rowid = 'num', tokenize = 'unicode61 remove_diacritics 2')
    """,
    """
    CREATE TRIGGER turns_fts_insert AFTER INSERT ON turns BEGIN
        INSERT INTO turns_fts (rowid, text) VALUES (new.num, new.text);
    END
    """,
    """
    CREATE TRIGGER turns_fts_delete AFTER DELETE ON turns BEGIN
        INSERT INTO turns_fts (turns_fts, rowid, text) VALUES ('delete', old.num, old.text);
    END
    """,
    """
    CREATE TRIGGER turns_fts_update AFTER UPDATE OF text ON turns BEGIN
        INSERT INTO turns_fts (turns_fts, rowid, text) VALUES ('delete', old.num, old.text);
        INSERT INTO turns_fts (rowid, text) VALUES (new.num, new.text);
    END
    """,
    "ALTER TABLE sessions ADD COLUMN namespace TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE sessions ADD COLUMN verified TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE turns ADD COLUMN parts BLOB",
    "ALTER TABLE turns ADD COLUMN repaired INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE pieces ADD COLUMN digests BLOB",
    "ALTER TABLE sessions ADD COLUMN digests BLOB",
    "ALTER TABLE sessions ADD COLUMN lost TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE branches ADD COLUMN digests BLOB",
    "ALTER TABLE pieces ADD COLUMN place INTEGER",
    "ALTER TABLE sessions ADD COLUMN adapter TEXT NOT NULL DEFAULT ''",
)

_IMPLAUSIBLE_VERSION = 256


def create(connection: sqlite3.Connection, path: Path, conceal: Sequence[str] = ()) -> None:
    """Create the tables of a database that has none, in one transaction.

    Args:
        conceal: statements that make tables those of an encrypted database.

    Raises:
        StorageError: a newer kvchat wrote it; DamageFound: none has written this version.
    """
    if _version(connection) == VERSION:
        return
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        # Read again under the write lock: another process may have created them meanwhile.
        version = _version(connection)
        if version == VERSION:
            return
        is_plausible = VERSION < version < _IMPLAUSIBLE_VERSION
        if is_plausible and _schema_of(connection) != _schema_of_new(tuple(conceal)):
            raise StorageError(
                f"{path} was written by a newer kvchat; update kvchat, or use another --data-dir"
            )
        if version:
            raise DamageFound(f"no kvchat has written version {version} with these tables")
        for statement in (*_CREATE, *conceal):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")


def lacks_words(error: Exception) -> bool:
    """Whether this Python's SQLite cannot index words. Another name of a module is a damaged one."""
    return str(error) == "no such module: fts5"


def refuse_damaged_tables(connection: sqlite3.Connection, conceal: Sequence[str] = ()) -> None:
    """Raise if a table, index or trigger is not as `create` makes it: the schema was damaged.

    Raises: DamageFound: one is not; sqlite3.Error: the file cannot be read.
    """
    try:
        missing = _schema_of_new(tuple(conceal)) - _schema_of(connection)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_ERROR" or lacks_words(error):
            raise
        raise DamageFound(str(error)) from error  # the index of words, which has an opinion of its own
    if missing:
        raise DamageFound(f"{min(missing)[0]} is not as it was created")


@cache
def _schema_of_new(conceal: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create(connection, Path(":memory:"), conceal)
        return _schema_of(connection)


def _schema_of(connection: sqlite3.Connection) -> frozenset[tuple[str, str]]:
    """Return the name and the statement of everything in a database, and open every table."""
    tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
    for (table,) in connection.execute(tables).fetchall():
        connection.execute("SELECT count(*) FROM pragma_table_info(?)", (table,))
    query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    return frozenset((name, sql) for name, sql in connection.execute(query))


def _version(connection: sqlite3.Connection) -> int:
    row = connection.execute("PRAGMA user_version").fetchone()
    return int(row[0])
