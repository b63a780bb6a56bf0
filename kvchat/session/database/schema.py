"""The tables of the session database, and how an older one is brought forward.

`PRAGMA user_version` counts the migrations that were applied. A new version appends an entry to `MIGRATIONS`;
an entry that has shipped is never changed. Each entry changes the schema, so that a version which the schema
does not confirm is known for damage.

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
from functools import cache, partial
from itertools import chain
from pathlib import Path

from kvchat.errors import StorageError
from kvchat.session.database.digests import (
    BRANCH_COLUMNS,
    PART_COLUMNS,
    SESSION_COLUMNS,
    column_digests,
    part_digests,
    turn_digest,
)
from kvchat.session.database.silent_damage import DamageFound

_FIRST = (
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
)

_NAMESPACES = (
    "ALTER TABLE sessions ADD COLUMN namespace TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE sessions ADD COLUMN verified TEXT NOT NULL DEFAULT ''",
)

# Only rows that agree with the digest of the first version get digests of their parts.
_PARTS = (
    "ALTER TABLE turns ADD COLUMN parts BLOB",
    "ALTER TABLE turns ADD COLUMN repaired INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE pieces ADD COLUMN digests BLOB",
    """
    UPDATE turns SET parts = part_digests(id, text, reasoning, token_ids,
        session_id, parent_id, role, finish, model, fingerprint, tokenizer, exact, starts_over)
    WHERE digest = turn_digest(role, parent_id, text, reasoning, token_ids)
    """,
)

_OF_FOURTH = SESSION_COLUMNS[:10]

# Without digests a row is believed: nobody knows what was written.
_COLUMNS = (
    "ALTER TABLE sessions ADD COLUMN digests BLOB",
    "ALTER TABLE sessions ADD COLUMN lost TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE branches ADD COLUMN digests BLOB",
    "ALTER TABLE pieces ADD COLUMN place INTEGER",
    "UPDATE sessions SET digests = session_digests(" + ", ".join(_OF_FOURTH) + ")",
    "UPDATE branches SET digests = branch_digests(" + ", ".join(BRANCH_COLUMNS) + ")",
)

_ADAPTERS = ("ALTER TABLE sessions ADD COLUMN adapter TEXT NOT NULL DEFAULT ''",)

_IMPLAUSIBLE_VERSION = 256

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST, _NAMESPACES, _PARTS, _COLUMNS, _ADAPTERS)


def migrate(
    connection: sqlite3.Connection, path: Path, *, reveal: Sequence[str] = (), conceal: Sequence[str] = ()
) -> None:
    """Bring a database forward to the newest version, in one transaction.

    Args:
        reveal: statements that give the tables of an encrypted database the names that migrations know. The
            values in them stay encrypted.
        conceal: statements that make tables those of an encrypted database.

    Raises:
        StorageError: a newer kvchat wrote it.
    """
    if _version(connection) == len(MIGRATIONS):
        return
    connection.create_function("turn_digest", 5, turn_digest, deterministic=True)
    connection.create_function("part_digests", len(PART_COLUMNS), _part_digests, deterministic=True)
    for name, columns in (("session_digests", _OF_FOURTH), ("branch_digests", BRANCH_COLUMNS)):
        function = partial(_column_digests, columns)
        connection.create_function(name, len(columns), function, deterministic=True)
    connection.execute("BEGIN IMMEDIATE")
    try:
        _apply(connection, path, reveal, conceal)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def lacks_words(error: Exception) -> bool:
    """Whether this Python's SQLite cannot index words. Another name of a module is a damaged one."""
    return str(error) == "no such module: fts5"


def refuse_damaged_tables(
    connection: sqlite3.Connection, *, reveal: Sequence[str] = (), conceal: Sequence[str] = ()
) -> None:
    """Raise if a table, index or trigger is not that of the newest version: the schema was damaged.

    Args:
        reveal, conceal: see `migrate`.

    Raises: DamageFound: one is not; sqlite3.Error: the file cannot be read.
    """
    try:
        missing = _schema_of_new(tuple(reveal), tuple(conceal)) - _schema_of(connection)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_ERROR" or lacks_words(error):
            raise
        raise DamageFound(str(error)) from error  # the index of words, which has an opinion of its own
    if missing:
        raise DamageFound(f"{min(missing)[0]} is not as it was created")


@cache
def _schema_of_new(reveal: tuple[str, ...], conceal: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, Path(":memory:"), reveal=reveal, conceal=conceal)
        return _schema_of(connection)


def _schema_of(connection: sqlite3.Connection) -> frozenset[tuple[str, str]]:
    """Return the name and the statement of everything in a database, and open every table."""
    tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
    for (table,) in connection.execute(tables).fetchall():
        connection.execute("SELECT count(*) FROM pragma_table_info(?)", (table,))
    query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    return frozenset((name, sql) for name, sql in connection.execute(query))


def _apply(connection: sqlite3.Connection, path: Path, reveal: Sequence[str], conceal: Sequence[str]) -> None:
    # Read again under the write lock: another process may have migrated meanwhile.
    version = _version(connection)
    if not 0 <= version < _IMPLAUSIBLE_VERSION:
        raise DamageFound(f"no kvchat has version {version}")
    if version > len(MIGRATIONS) and _schema_of(connection) == _schema_of_new(tuple(reveal), tuple(conceal)):
        raise DamageFound(f"it says that it is of version {version}, and its tables are not")
    if version > len(MIGRATIONS):
        raise StorageError(f"{path} was written by a newer kvchat; update kvchat, or use another --data-dir")
    revealed = reveal if version else ()
    for statement in chain(revealed, *MIGRATIONS[version:], conceal):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _part_digests(*values: str | bytes | int | None) -> bytes:
    return b"".join(part_digests(dict(zip(PART_COLUMNS, values, strict=True))).values())


def _column_digests(columns: Sequence[str], *values: str | int | float | None) -> bytes:
    return column_digests(columns, dict(zip(columns, values, strict=True)))


def _version(connection: sqlite3.Connection) -> int:
    row = connection.execute("PRAGMA user_version").fetchone()
    return int(row[0])
