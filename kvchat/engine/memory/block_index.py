"""Which blocks are on disk: a hint for quick answers, never the truth, which is the files.

One SQLite file serves every fingerprint in a cache directory. Losing it costs the time to look at the files
again, nothing else; a file that SQLite cannot read is replaced by an empty one.
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Any

from kvchat.engine.api.ids import BlockKey, GroupId, from_u32le, u32le
from kvchat.engine.memory.block_file import BlockHeader, FoundBlock
from kvchat.errors import StorageError

BlockName = tuple[bytes, BlockKey, GroupId]
"""Fingerprint, key and group: what names one file."""

_BUSY_TIMEOUT_S = 5.0
# What SQLite raises for a damaged file; a damaged page size asks for too much memory.
_SQLITE_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError, MemoryError)
_DAMAGE_CODES = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,  # no such table or column
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
)
_KEYS_PER_QUERY = 900  # SQLite's oldest limit on variables is 999

# The checks are for `integrity_check`, which finds rows that a damaged disk has changed.
# Triggers keep the totals, so that a limit can be enforced after every write without counting rows.
_SCHEMA = (
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
    PRIMARY KEY (fingerprint, key, grp),
    CHECK (typeof(fingerprint) = 'blob' AND length(fingerprint) = 32),
    CHECK (typeof(key) = 'blob' AND length(key) = 32),
    CHECK (typeof(parent) = 'blob' AND length(parent) = 32),
    CHECK (typeof(token_ids) = 'blob' AND length(token_ids) = 4 * num_tokens AND num_tokens <= block_size),
    CHECK (typeof(grp) = 'integer' AND typeof(bytes) = 'integer' AND typeof(last_used) = 'real')
) WITHOUT ROWID""",
    "CREATE INDEX blocks_by_parent ON blocks (fingerprint, parent)",
    "CREATE INDEX blocks_by_age ON blocks (last_used)",
    """CREATE TABLE totals (
    fingerprint BLOB PRIMARY KEY,
    num_blocks INTEGER NOT NULL,
    num_tails INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) WITHOUT ROWID""",
    """CREATE TRIGGER count_added AFTER INSERT ON blocks BEGIN
    INSERT INTO totals SELECT new.fingerprint, 0, 0, 0
        WHERE NOT EXISTS (SELECT 1 FROM totals WHERE fingerprint = new.fingerprint);
    UPDATE totals SET num_blocks = num_blocks + 1, bytes = bytes + new.bytes,
        num_tails = num_tails + (new.num_tokens < new.block_size) WHERE fingerprint = new.fingerprint;
END""",
    """CREATE TRIGGER count_removed AFTER DELETE ON blocks BEGIN
    UPDATE totals SET num_blocks = num_blocks - 1, bytes = bytes - old.bytes,
        num_tails = num_tails - (old.num_tokens < old.block_size) WHERE fingerprint = old.fingerprint;
END""",
)

_COUNT_ANEW = """
INSERT INTO totals SELECT fingerprint, count(*), sum(num_tokens < block_size), sum(bytes)
FROM blocks GROUP BY fingerprint
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """What is on disk. A block of one group is one file and counts once; tails are among the blocks."""

    num_blocks: int
    num_tails: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedBlock:
    """A block in the words of the index, all its groups together; `last_used_s` is the latest of them."""

    fingerprint: bytes
    key: BlockKey
    parent: BlockKey
    token_ids: tuple[int, ...]
    block_size: int
    groups: frozenset[GroupId]
    num_bytes: int
    last_used_s: float

    @property
    def is_tail(self) -> bool:
        return len(self.token_ids) < self.block_size


class BlockIndex:
    """The rows of one cache directory. May be called from several threads and opened by several processes."""

    def __init__(self, path: Path) -> None:
        """Open the index, or begin an empty one.

        Raises: StorageError: the directory cannot be written.
        """
        self._path = path
        self._lock = Lock()
        self._connection = self._open()
        self._was_lost = False

    def take_lost(self) -> bool:
        """Return whether rows were lost since the last call, so that the files should be looked at again."""
        with self._lock:
            was_lost, self._was_lost = self._was_lost, False
        return was_lost

    def contains(self, fingerprint: bytes, key: BlockKey, group: GroupId) -> bool:
        return bool(self.contained(fingerprint, [key], group))

    def contained(self, fingerprint: bytes, keys: Sequence[BlockKey], group: GroupId) -> set[BlockKey]:
        """Return those of `keys` that have a row for the group; a few queries however long the chain."""
        found: set[BlockKey] = set()
        for start in range(0, len(keys), _KEYS_PER_QUERY):
            part = keys[start : start + _KEYS_PER_QUERY]
            marks = ",".join("?" * len(part))
            query = f"SELECT key FROM blocks WHERE fingerprint=? AND grp=? AND key IN ({marks})"
            found.update(BlockKey(key) for (key,) in self._read(query, fingerprint, group, *part))
        return found

    def children(self, fingerprint: bytes, parent: BlockKey) -> list[IndexedBlock]:
        """Return the blocks and tails directly behind a parent."""
        return list(self._blocks("WHERE fingerprint=? AND parent=?", fingerprint, parent))

    def blocks(self) -> list[IndexedBlock]:
        """Return all blocks of all fingerprints."""
        return list(self._blocks(""))

    def with_key(self, fingerprint: bytes, key: BlockKey) -> IndexedBlock | None:
        return next(self._blocks("WHERE fingerprint=? AND key=?", fingerprint, key), None)

    def names(self) -> set[BlockName]:
        """Return the name of every row."""
        return set(self._read("SELECT fingerprint, key, grp FROM blocks"))

    def check(self) -> None:
        """Look at every row, begin again if one is damaged, and count the totals anew."""
        with self._lock:
            try:
                is_sound = self._connection.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)
                with self._transaction():
                    self._connection.execute("DELETE FROM totals")
                    self._connection.execute(_COUNT_ANEW)
            except _SQLITE_ERRORS as error:
                is_sound = not _is_damage(error)
            if not is_sound:
                self._renew()

    def oldest_leaves(self, limit: int) -> list[IndexedBlock]:
        """Return blocks that no block on disk has as its parent, longest unused first."""
        is_leaf = """NOT EXISTS (SELECT 1 FROM blocks AS child
                     WHERE child.fingerprint = blocks.fingerprint AND child.parent = blocks.key)"""
        rows = self._read(
            f"SELECT fingerprint, key FROM blocks WHERE {is_leaf} ORDER BY last_used LIMIT ?", limit
        )
        found = (self.with_key(fingerprint, key) for fingerprint, key in dict.fromkeys(rows))
        return [block for block in found if block is not None]

    def usage(self, fingerprint: bytes | None = None) -> DiskUsage:
        """Return the totals of one fingerprint, or of all; O(number of fingerprints)."""
        chosen = [usage for name, usage in self.usages().items() if fingerprint in (None, name)]
        return DiskUsage(
            num_blocks=sum(usage.num_blocks for usage in chosen),
            num_tails=sum(usage.num_tails for usage in chosen),
            num_bytes=sum(usage.num_bytes for usage in chosen),
        )

    def usages(self) -> dict[bytes, DiskUsage]:
        rows = self._read("SELECT fingerprint, num_blocks, num_tails, bytes FROM totals WHERE num_blocks > 0")
        return {
            fingerprint: DiskUsage(num_blocks=num_blocks, num_tails=num_tails, num_bytes=num_bytes)
            for fingerprint, num_blocks, num_tails, num_bytes in rows
        }

    def add(self, blocks: Iterable[FoundBlock]) -> None:
        """Insert rows; a row that is there stays as it is."""
        self._write(
            "INSERT INTO blocks VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING",
            [_row(block) for block in blocks],
        )

    def drop(self, names: Iterable[BlockName]) -> None:
        """Remove rows; a row that is not there is no error."""
        self._write("DELETE FROM blocks WHERE fingerprint=? AND key=? AND grp=?", list(names))

    def touch(self, fingerprint: bytes, used_s: dict[BlockKey, float]) -> None:
        """Record when blocks were last used."""
        rows = [(moment, fingerprint, key) for key, moment in used_s.items()]
        self._write("UPDATE blocks SET last_used=? WHERE fingerprint=? AND key=?", rows)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _blocks(self, where: str, *values: object) -> Iterator[IndexedBlock]:
        columns = "fingerprint, key, parent, token_ids, block_size"
        merged = "group_concat(grp), sum(bytes), max(last_used)"
        rows = self._read(
            f"SELECT {columns}, {merged} FROM blocks {where} GROUP BY fingerprint, key", *values
        )
        for fingerprint, key, parent, token_ids, block_size, groups, num_bytes, last_used_s in rows:
            yield IndexedBlock(
                fingerprint=fingerprint,
                key=BlockKey(key),
                parent=BlockKey(parent),
                token_ids=tuple(from_u32le(token_ids)),
                block_size=block_size,
                groups=frozenset(GroupId(int(group)) for group in groups.split(",")),
                num_bytes=num_bytes,
                last_used_s=last_used_s,
            )

    def _read(self, query: str, *values: object) -> list[Any]:
        """Return the rows; none if the index cannot be read: what a hint does not say costs time only."""
        with self._lock:
            try:
                return self._connection.execute(query, values).fetchall()
            except _SQLITE_ERRORS as error:
                if _is_damage(error):
                    self._renew()
                return []

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        if not rows:
            return
        with self._lock:
            try:
                self._write_once(statement, rows)
            except _SQLITE_ERRORS as error:
                if not _is_damage(error):
                    raise StorageError(f"The cache index {self._path} cannot be written: {error}.") from error
                self._renew()
                self._write_once(statement, rows)

    def _write_once(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        with self._transaction():
            self._connection.executemany(statement, rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _renew(self) -> None:
        """Begin an empty index in place of a damaged one."""
        self._connection.close()
        self._unlink()
        self._connection = self._open()
        self._was_lost = True

    def _open(self) -> sqlite3.Connection:
        until_s = monotonic() + _BUSY_TIMEOUT_S
        while True:
            try:
                return self._connect()
            except (*_SQLITE_ERRORS, OSError) as error:
                is_passing = _is_damage(error) or _is_busy(error)
                if not is_passing or monotonic() > until_s:
                    refusal = f"The cache index {self._path} cannot be opened: {error}."
                    raise StorageError(f"{refusal} Choose another cache directory.") from error
                if _is_damage(error):
                    self._unlink()
            # SQLite's own timeout does not cover the change to write-ahead logging.
            sleep(0.01)

    def _connect(self) -> sqlite3.Connection:
        # Created first with the mode it must have; SQLite gives its side files the same.
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            if not _has_our_tables(connection):
                self._create_tables(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN EXCLUSIVE")
        if not _has_our_tables(connection):
            for table in ("blocks", "totals"):
                connection.execute(f"DROP TABLE IF EXISTS {table}")
            for statement in _SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")

    def _unlink(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)


def _is_damage(error: Exception) -> bool:
    """Whether a new file helps: malformed, no database or other tables; not locked, full or unreadable."""
    if isinstance(error, OSError | sqlite3.ProgrammingError):
        return False  # the latter: used after close
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # none: a value that cannot be decoded
    return code & 0xFF in _DAMAGE_CODES


def _is_busy(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _has_our_tables(connection: sqlite3.Connection) -> bool:
    """Whether the tables are exactly those of this version, neither older, newer nor damaged."""
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {statement for (statement,) in rows} == set(_SCHEMA)


def _row(block: FoundBlock) -> tuple[object, ...]:
    header: BlockHeader = block.header
    return (
        block.fingerprint,
        header.key,
        header.group,
        header.parent,
        len(header.token_ids),
        block.block_size,
        u32le(header.token_ids),
        block.num_bytes,
        block.modified_s,
    )
