"""The SQLite file of the block index: opened, begun again when it is damaged, written in transactions.

Nothing in it is the truth, so damage is never an error: the file is replaced by an empty one and `take_lost`
says that the block files should be looked at again.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Any, Final

from kvchat.engine.memory.disk.block_encryption import BlockEncryption
from kvchat.engine.memory.disk.io import Identity, SystemFiles, unlink_if_there
from kvchat.errors import StorageError
from kvchat.platform import sqlite_locks

WRITTEN: Final = "CREATE TABLE written (day INTEGER PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID"
"""What no file tells: it stays when the other tables are of another version."""

# The checks are for `integrity_check`, which finds rows that a damaged disk has changed.
# Triggers keep the totals, so that a limit can be enforced before every write without counting rows.
SCHEMA: Final = (
    """CREATE TABLE blocks (
    fingerprint BLOB NOT NULL,
    key BLOB NOT NULL,
    grp INTEGER NOT NULL,
    parent BLOB NOT NULL,
    num_tokens INTEGER NOT NULL,
    block_size INTEGER NOT NULL,
    token_ids BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    last_used REAL NOT NULL,
    proven INTEGER NOT NULL,
    writer TEXT,
    PRIMARY KEY (fingerprint, key, grp),
    CHECK (typeof(fingerprint) = 'blob' AND length(fingerprint) = 32),
    CHECK (typeof(key) = 'blob' AND length(key) = 32),
    CHECK (typeof(parent) = 'blob' AND length(parent) = 32),
    CHECK (typeof(token_ids) = 'blob' AND length(token_ids) = 4 * num_tokens AND num_tokens <= block_size),
    CHECK (typeof(grp) = 'integer' AND typeof(bytes) = 'integer' AND typeof(last_used) = 'real'),
    CHECK (proven IN (0, 1))
) WITHOUT ROWID""",
    "CREATE INDEX blocks_by_parent ON blocks (fingerprint, parent, token_ids)",
    "CREATE INDEX blocks_by_age ON blocks (last_used)",
    "CREATE INDEX blocks_by_worth ON blocks (proven, last_used)",
    "CREATE INDEX blocks_unsettled ON blocks (writer) WHERE writer IS NOT NULL",
    """CREATE TABLE totals (
    fingerprint BLOB PRIMARY KEY,
    num_blocks INTEGER NOT NULL,
    num_tails INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    num_proven INTEGER NOT NULL
) WITHOUT ROWID""",
    "CREATE TABLE writers (id TEXT PRIMARY KEY, boot TEXT NOT NULL) WITHOUT ROWID",
    WRITTEN,
    """CREATE TRIGGER count_added AFTER INSERT ON blocks BEGIN
    INSERT INTO totals SELECT new.fingerprint, 0, 0, 0, 0
        WHERE NOT EXISTS (SELECT 1 FROM totals WHERE fingerprint = new.fingerprint);
    UPDATE totals SET num_blocks = num_blocks + 1, bytes = bytes + new.bytes,
        num_tails = num_tails + (new.num_tokens < new.block_size), num_proven = num_proven + new.proven
        WHERE fingerprint = new.fingerprint;
END""",
    """CREATE TRIGGER count_removed AFTER DELETE ON blocks BEGIN
    UPDATE totals SET num_blocks = num_blocks - 1, bytes = bytes - old.bytes,
        num_tails = num_tails - (old.num_tokens < old.block_size), num_proven = num_proven - old.proven
        WHERE fingerprint = old.fingerprint;
END""",
    """CREATE TRIGGER count_proven AFTER UPDATE OF proven ON blocks WHEN new.proven <> old.proven BEGIN
    UPDATE totals SET num_proven = num_proven + new.proven - old.proven WHERE fingerprint = new.fingerprint;
END""",
)

RECOUNT: Final = (
    "DELETE FROM totals",
    """INSERT INTO totals SELECT fingerprint, count(*), sum(num_tokens < block_size), sum(bytes), sum(proven)
    FROM blocks GROUP BY fingerprint""",
)


def _schema_of(encryption: BlockEncryption) -> tuple[str, ...]:
    """Return the statements that create the tables, indexes and triggers for blocks that lie so."""
    if not encryption.entry_overhead:
        return SCHEMA
    length = f"4 * num_tokens + {encryption.entry_overhead}"
    return tuple(statement.replace("4 * num_tokens", length) for statement in SCHEMA)


Row = tuple[object, ...]

_BUSY_TIMEOUT_S = 5.0
_FORMATS = slice(18, 20)
"""Bytes of a file's head: the formats for writing and for reading it."""
_NEWEST_FORMAT = 2
# What SQLite raises for a damaged file; a damaged page size asks for too much memory.
_SQLITE_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError, MemoryError)
_DAMAGE_CODES = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,  # no such table or column
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
)


class IndexFile:
    """One database of a fixed schema. May be called from several threads and opened by several processes."""

    def __init__(
        self, path: Path, encryption: BlockEncryption, files: SystemFiles, is_there: Callable[..., bool]
    ) -> None:
        """Open the file, or begin an empty one; tables of another version are dropped, but for `written`.

        Args:
            encryption: how blocks lie that the rows are of.
            is_there: what statements may call by this name, with any number of values; must not raise.

        Raises: StorageError: it can be neither opened nor created.
        """
        self._path = path
        self._schema = _schema_of(encryption)
        self._files = files
        self._is_there = is_there
        self._lock = Lock()
        """Held while something is written, which may wait for other processes; taken before `_reading`."""
        self._reading = Lock()
        self._was_lost = False
        self._opened: Identity | None = None
        """Which file is open; None: none is, because it could not be opened again when that was needed."""
        self._is_closed = False
        self._connection, self._reader = self._open()

    def take_lost(self) -> bool:
        """Return whether rows were lost since the last call, so that the files should be looked at again."""
        if not self._was_lost:
            return False
        self._was_lost = False
        return True

    def read(self, query: str, *values: object) -> list[Any]:
        """Return the rows; none if the index cannot be read: what a hint does not say costs time only.

        Waits for nobody who writes, here or in another process: a connection of its own reads what was
        committed last.
        """
        with self._reading:
            reader = self._reader
            try:
                return reader.execute(query, values).fetchall()
            except _SQLITE_ERRORS as error:
                is_damaged = _is_damage(error)
        if is_damaged:
            with suppress(StorageError, OSError):  # it stays damaged, and says nothing
                self._mend(reader)
        return []

    def write(self, *changes: tuple[str, Sequence[Row]], durable: bool = False) -> None:
        """Execute each statement for each of its rows, all in one transaction.

        Args:
            durable: wait until this and everything before it is on the medium. Otherwise it survives the end
                of the process, and a loss of power may undo the last changes, never ones before those.

        Raises: StorageError: disk full, locked or not writable; nothing was changed.
        """
        changes = tuple(change for change in changes if change[1])
        if not changes:
            return
        with self._lock:
            try:
                self._follow()
                self._write_once(changes, durable)
            except (*_SQLITE_ERRORS, OSError) as error:
                if not _is_damage(error):
                    raise StorageError(_refusal(self._path, error)) from error
                self._renew()
                self._write_once(changes, durable)

    def check(self) -> None:
        """Look at every page and row, begin again if one is damaged, and count the totals anew. O(all)."""
        with self._lock:
            try:
                is_sound = self._connection.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)
                self._write_once([(statement, [()]) for statement in RECOUNT], durable=False)
            except _SQLITE_ERRORS as error:
                is_sound = not _is_damage(error)
            if not is_sound:
                self._renew()

    def erase(self) -> None:
        """Write the file anew without what was deleted from it, and empty its log. O(all).

        Raises: StorageError: no room, or somebody else is at it; what is there can be used as before.
        """
        with self._lock:
            try:
                self._follow()
                sqlite_locks.compact(self._connection)
            except (*_SQLITE_ERRORS, OSError) as error:
                raise StorageError(_refusal(self._path, error)) from error

    def close(self) -> None:
        with self._lock, self._reading:
            self._is_closed = True
            self._close()

    def _write_once(self, changes: Sequence[tuple[str, Sequence[Row]]], durable: bool) -> None:
        with self._transaction(durable):
            for statement, rows in changes:
                self._connection.executemany(statement, rows)

    @contextmanager
    def _transaction(self, durable: bool) -> Iterator[None]:
        self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._files.commit(self._connection)
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _follow(self) -> None:
        """Open the file that has the name now: another process may have replaced it, or somebody removed it.

        A closed file stays closed.
        """
        if self._is_closed:
            raise sqlite3.ProgrammingError("it was closed")
        if self._opened is None or self._files.identity(self._path) != self._opened:
            with self._reading:
                self._close()
                self._connection, self._reader = self._open()
            self._was_lost = True

    def _renew(self) -> None:
        """Begin an empty index in place of a damaged one."""
        with self._reading:
            self._close()
            self._opened = None
            self._unlink()
            self._connection, self._reader = self._open()

    def _mend(self, reader: sqlite3.Connection) -> None:
        """Begin anew because of what a reader has found, unless somebody has since."""
        with self._lock:
            if self._reader is reader:
                self._renew()

    def _close(self) -> None:
        self._reader.close()
        self._connection.close()

    def _open(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        """Return a connection to write with and one to read with."""
        until_s = monotonic() + _BUSY_TIMEOUT_S
        while True:
            try:
                return self._connect()
            except (*_SQLITE_ERRORS, OSError) as error:
                is_passing = _is_damage(error) or _is_busy(error) or self._is_only_gone(error)
                if not is_passing or monotonic() > until_s:
                    self._opened = None
                    raise StorageError(_refusal(self._path, error)) from error
                if _is_damage(error):
                    self._unlink()
            # SQLite's own timeout does not cover the change to write-ahead logging.
            sleep(0.01)

    def _connect(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        sqlite_locks.create(self._path)
        self._refuse_another_format()
        connection = sqlite_locks.connect(self._path, timeout_s=_BUSY_TIMEOUT_S)
        try:
            connection.create_function("is_there", -1, self._is_there)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA secure_delete=ON")  # rows hold token ids
            if not self._has_our_tables(connection):
                self._create_tables(connection)
            self._opened = self._files.identity(self._path)
            return connection, self._connect_reader()
        except BaseException:
            connection.close()
            raise

    def _connect_reader(self) -> sqlite3.Connection:
        reader = sqlite_locks.connect(self._path, timeout_s=_BUSY_TIMEOUT_S)
        try:
            reader.execute("PRAGMA query_only=ON")
            if self._files.identity(self._path) != self._opened:  # both must be of one file
                replaced = sqlite3.OperationalError("it was replaced just now")
                replaced.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise replaced
        except BaseException:
            reader.close()
            raise
        return reader

    def _is_only_gone(self, error: BaseException) -> bool:
        """Whether another process took the file's name away just now, to begin it anew."""
        return isinstance(error, FileNotFoundError) and os.path.isdir(self._path.parent)

    def _refuse_another_format(self) -> None:
        """Raise if the head names a format that SQLite would read and never write: damage alone does."""
        head = sqlite_locks.first_bytes(self._path, _FORMATS.stop)
        if head[_FORMATS] and max(head[_FORMATS]) > _NEWEST_FORMAT:
            raise sqlite3.DatabaseError("a format of a SQLite that is still to come")

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN EXCLUSIVE")
        if not self._has_our_tables(connection):
            tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
            carried = {statement for _, statement in tables} & {WRITTEN}
            for table, statement in tables:
                if statement not in carried:
                    connection.execute(f'DROP TABLE "{table}"')
            for statement in self._schema:
                if statement not in carried:
                    connection.execute(statement)
            self._was_lost = True
        self._files.commit(connection)

    def _has_our_tables(self, connection: sqlite3.Connection) -> bool:
        """Whether the tables are exactly those of this version, neither older, newer nor damaged."""
        rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {statement for (statement,) in rows} == set(self._schema)

    def _unlink(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            unlink_if_there(self._files, Path(f"{self._path}{suffix}"))


def _refusal(path: Path, error: BaseException) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return f"There is no room left for the cache index {path}: free some space."
    if code == sqlite3.SQLITE_IOERR:
        return f"The cache index {path} cannot be used: {error}. Check the disk and its free space."
    if code == sqlite3.SQLITE_BUSY:
        return f"The cache index {path} is locked by another program: close it, or choose another directory."
    return f"The cache index {path} cannot be used: {error}. Choose another cache directory."


def _is_damage(error: BaseException) -> bool:
    """Whether a new file helps: malformed, no database or other tables; not locked, full or unreadable."""
    if isinstance(error, OSError | sqlite3.ProgrammingError):
        return False  # the latter: used after close
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # none: a value that cannot be decoded
    return code & 0xFF in _DAMAGE_CODES


def _is_busy(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
