"""Encrypted rows under the names and values of plain ones: temporary views decrypt, triggers encrypt.

In the file each table has another name, and every value that tells of a conversation is encrypted for its row
and column; ids, the shape of the tree, roles, times and lengths are not hidden. A value that does not decrypt
reads as NULL in a session or branch, and as an empty one in a turn, where the digests then say which part is
damaged.
"""

import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvchat.errors import EncryptionError, StorageError
from kvchat.platform.encryptor import DecryptionFailed, Encryptor
from kvchat.session.database import schema
from kvchat.session.database.plain_tables import ENCRYPTED_MARK, PLAIN, Tables, is_encrypted
from kvchat.session.database.silent_damage import DamageFound

_PREFIX = "sealed_"
_ROW_IDS = {
    "sessions": "id",
    "branches": "session_id",
    "turns": "id",
    "pieces": "turn_num || '.' || num",  # they must stay in their order
}
# A piece's number is part of its place, so it is chosen before SQLite would choose the same.
_NEXT_PIECE = "coalesce(new.num, (SELECT coalesce(max(num), 0) + 1 FROM sealed_pieces))"
_NEW_ROW_IDS = {
    "sessions": "new.id",
    "branches": "new.session_id",
    "turns": "new.id",
    "pieces": f"new.turn_num || '.' || {_NEXT_PIECE}",
}
_KEYS = {
    "sessions": "id = old.id",
    "branches": "session_id = old.session_id AND {shown} IS old.name",
    "turns": "num = old.num",
    "pieces": "num = old.num",
}
# What each encrypted column is bound to beside its row: a branch has one name, which two tables hold.
_PLACES: Mapping[str, Mapping[str, str]] = {
    "sessions": {
        "title": "title",
        "system": "system",
        "model": "model of session",
        "namespace": "namespace",
        "adapter": "adapter of session",
        "active_branch": "branch",
        "digests": "digests of session",
    },
    "branches": {"name": "branch", "digests": "digests of branch"},
    "turns": {
        "text": "text",
        "reasoning": "reasoning",
        "token_ids": "token ids",
        "model": "model",
        "digest": "digest",
        "parts": "parts",
    },
    "pieces": {
        "text": "text of piece",
        "reasoning": "reasoning of piece",
        "token_ids": "token ids of piece",
        "digests": "digests of piece",
    },
}
_BORN_EMPTY = ("adapter of session",)
"""Places of columns that came later: in rows from before they are empty, and not encrypted."""
_ENDURES_DAMAGE = ("turns", "pieces")

CONCEAL = (
    "DROP TRIGGER IF EXISTS turns_fts_insert",
    "DROP TRIGGER IF EXISTS turns_fts_delete",
    "DROP TRIGGER IF EXISTS turns_fts_update",
    "DROP TABLE IF EXISTS turns_fts",
    *(f"ALTER TABLE {table} RENAME TO {_PREFIX}{table}" for table in _PLACES),
    f"PRAGMA application_id = {ENCRYPTED_MARK}",
)
REVEAL = tuple(f"ALTER TABLE {_PREFIX}{table} RENAME TO {table}" for table in _PLACES)

_INDEX_OF_WORDS = """
    CREATE VIRTUAL TABLE IF NOT EXISTS temp.turns_fts
    USING fts5 (text, tokenize = 'unicode61 remove_diacritics 2')
"""
_NUM_TRIED = 16
_NONCE_LEN = 16
"""Characters of an encrypted text that hold its nonce, which follows from the text."""


def tables_of(encryptor: Encryptor | None) -> Tables:
    """Return how rows lie: encrypted, or in the clear for None."""
    return PLAIN if encryptor is None else EncryptedTables(encryptor)


class EncryptedTables(Tables):
    """Rows encrypted with one key."""

    encryptor: Encryptor

    def __init__(self, encryptor: Encryptor) -> None:
        self.encryptor = encryptor
        self._indexed: tuple[sqlite3.Connection, dict[int, str]] | None = None

    def check(self, path: Path) -> None:
        if is_encrypted(path):
            return
        mark, names = _mark_and_names(path)  # a new file's first page may still be in its log
        if mark == ENCRYPTED_MARK:
            return
        if "turns" in names:
            raise StorageError(f"{path} is not encrypted any more; start kvchat again")
        if self.stored_name("turns") in names:
            raise DamageFound("it does not say that it is encrypted")

    def migrate(self, connection: sqlite3.Connection, path: Path) -> None:
        schema.migrate(connection, path, reveal=REVEAL, conceal=CONCEAL)

    def show(self, connection: sqlite3.Connection) -> None:
        schema.refuse_damaged_tables(connection, reveal=REVEAL, conceal=CONCEAL)
        # Nothing that was decrypted may be written to a file, as SQLite does with large sorts.
        connection.execute("PRAGMA temp_store = MEMORY")
        for name, function in (
            ("decrypted_text", self._decrypted_text),
            ("decrypted_bytes", self._decrypted),
            ("encrypted_text", self._encrypted_text),
            ("encrypted_bytes", self._encrypted),
        ):
            connection.create_function(name, 3, function, deterministic=True)
        self._refuse_another_key(connection)
        for table in _PLACES:
            for statement in _statements(table, _columns_of(connection, table)):
                connection.execute(statement)

    def index_words(self, connection: sqlite3.Connection) -> None:
        """Decrypt the texts that have changed since the last search. They lie in memory alone."""
        if self._indexed is None or self._indexed[0] is not connection:
            connection.execute(_INDEX_OF_WORDS)
            self._indexed = connection, {}
        known = self._indexed[1]
        query = f"SELECT num, substr(text, 1, {_NONCE_LEN}) AS nonce FROM {_PREFIX}turns"
        found = {row["num"]: str(row["nonce"]) for row in connection.execute(query)}
        gone = [(num,) for num, nonce in known.items() if found.get(num) != nonce]
        new = [(num,) for num, nonce in found.items() if known.get(num) != nonce]
        with connection:
            connection.execute("BEGIN")
            connection.executemany("DELETE FROM turns_fts WHERE rowid = ?", gone)
            connection.executemany(
                "INSERT INTO turns_fts (rowid, text) SELECT num, text FROM turns WHERE num = ?", new
            )
        self._indexed = connection, found

    def stored_name(self, table: str) -> str:
        return _PREFIX + table

    def is_whole(self, table: str, row: sqlite3.Row) -> bool:
        values: dict[str, Any] = {name: row[name] for name in row.keys()}  # noqa: SIM118  a row is no mapping
        row_id = f"{row['turn_num']}.{row['num']}" if table == "pieces" else str(row[_ROW_IDS[table]])
        for column, place in _PLACES[table].items():
            value = values[column]
            if value is not None:
                is_text = isinstance(value, str)
                data = value.encode() if is_text else value
                decrypt = self._decrypted_text if is_text else self._decrypted
                values[column] = decrypt(place, row_id.encode(), data)
                if values[column] is None:
                    return False
        return PLAIN.is_whole(table, values)  # type: ignore[arg-type]

    def _refuse_another_key(self, connection: sqlite3.Connection) -> None:
        """Raise if there are rows and nothing in them decrypts; a damaged row has others beside it."""
        found = []
        for table, column in (("sessions", "title"), ("turns", "text")):
            query = (
                f"SELECT CAST(id AS BLOB), CAST({column} AS BLOB) FROM {_PREFIX}{table} LIMIT {_NUM_TRIED}"
            )
            found += [self._decrypted_text(_PLACES[table][column], *row) for row in connection.execute(query)]
        if found and all(text is None for text in found):
            raise EncryptionError(
                "the key that lies beside the conversations is of another store; put sessions.key and"
                " sessions.key.backup back from a backup of this one"
            )

    # SQLite hands over everything as bytes: text that is damaged may be none.

    def _decrypted(self, place: str, row_id: bytes, value: bytes | None) -> bytes | None:
        """Return what was encrypted, None if it does not decrypt."""
        try:
            return None if value is None else self.encryptor.decrypt(_place(place, row_id), value)
        except (DecryptionFailed, TypeError):
            return None

    def _decrypted_text(self, place: str, row_id: bytes, value: bytes | None) -> str | None:
        if value == b"" and place in _BORN_EMPTY:
            return ""
        try:
            data = None if value is None else self._decrypted(place, row_id, b64decode(value, validate=True))
            return None if data is None else data.decode()
        except (ValueError, TypeError):
            return None

    def _encrypted(self, place: str, row_id: bytes, value: bytes | None) -> bytes | None:
        return None if value is None else self.encryptor.encrypt(_place(place, row_id), value)

    def _encrypted_text(self, place: str, row_id: bytes, value: bytes | None) -> str | None:
        data = self._encrypted(place, row_id, value)
        return None if data is None else b64encode(data).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column as the file has it: `text` or `bytes`. `default` is SQL."""

    name: str
    kind: str
    is_nullable: bool
    default: str | None

    @property
    def empty(self) -> str:
        return "''" if self.kind == "text" else "x''"


def _columns_of(connection: sqlite3.Connection, table: str) -> list[_Column]:
    found = connection.execute(f"PRAGMA main.table_info({_PREFIX}{table})")
    return [
        _Column(
            name=name,
            kind="bytes" if kind == "BLOB" else "text",
            is_nullable=not is_required,
            default=default,
        )
        for _, name, kind, is_required, default, _ in found
    ]


def _statements(table: str, columns: Sequence[_Column]) -> Iterator[str]:
    """Yield what makes a table's view, and the triggers that write through it."""
    stored, names = _PREFIX + table, ", ".join(column.name for column in columns)
    shown = ", ".join(f"{_shown(table, column)} AS {column.name}" for column in columns)
    added = ", ".join(_added(table, column) for column in columns)
    changed = ", ".join(f"{column.name} = {_changed(table, column)}" for column in columns)
    yield f"CREATE TEMP VIEW {table} AS SELECT {shown} FROM main.{stored}"
    yield (
        f"CREATE TEMP TRIGGER {table}_insert INSTEAD OF INSERT ON {table} BEGIN"
        f" INSERT INTO {stored} ({names}) VALUES ({added}); END"
    )
    key = _KEYS[table].format(shown=_shown(table, columns[1]))
    yield (
        f"CREATE TEMP TRIGGER {table}_update INSTEAD OF UPDATE ON {table} BEGIN"
        f" UPDATE {stored} SET {changed} WHERE {key}; END"
    )
    yield (
        f"CREATE TEMP TRIGGER {table}_delete INSTEAD OF DELETE ON {table} BEGIN"
        f" DELETE FROM {stored} WHERE {key}; END"
    )


def _shown(table: str, column: _Column) -> str:
    place = _PLACES[table].get(column.name)
    if place is None:
        return column.name
    value = _call("decrypted", place, _ROW_IDS[table], column, column.name)
    if table not in _ENDURES_DAMAGE:
        return value
    lasting = f"coalesce({value}, {column.empty})"
    return f"iif({column.name} IS NULL, NULL, {lasting})" if column.is_nullable else lasting


def _added(table: str, column: _Column) -> str:
    value = f"new.{column.name}"
    if table == "pieces" and column.name == "num":
        return _NEXT_PIECE
    if column.default is not None:
        value = f"coalesce({value}, {column.default})"
    place = _PLACES[table].get(column.name)
    return value if place is None else _call("encrypted", place, _NEW_ROW_IDS[table], column, value)


def _changed(table: str, column: _Column) -> str:
    place = _PLACES[table].get(column.name)
    if place is None:
        return f"new.{column.name}"
    # What does not decrypt and was not changed stays as it is: encrypted anew, it would look right.
    anew = _call("encrypted", place, _NEW_ROW_IDS[table], column, f"new.{column.name}")
    return f"iif(new.{column.name} IS old.{column.name}, {column.name}, {anew})"


def _call(function: str, place: str, row_id: str, column: _Column, value: str) -> str:
    return f"{function}_{column.kind}('{place}', CAST({row_id} AS BLOB), CAST({value} AS BLOB))"


def _place(place: str, row_id: bytes) -> bytes:
    return place.encode() + b"\0" + row_id


def _mark_and_names(path: Path) -> tuple[int, set[str]]:
    """Return what SQLite knows of a file; nothing if it cannot be read."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            (mark,) = connection.execute("PRAGMA application_id").fetchone()
            return mark, {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    except (sqlite3.Error, UnicodeDecodeError):
        return 0, set()
