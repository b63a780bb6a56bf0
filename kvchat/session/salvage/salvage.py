"""Salvage of a damaged session database: a new file takes its place, with every row that can still be read.

The damaged file is set aside. Rows come from it, from its repaired write-ahead log and from the backups,
whichever has them whole; a turn that is whole nowhere comes as it is, and reads as damaged. The digests of
the rows decide what is whole. `docs/salvage.md` has the steps, in order.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

from kvchat.errors import StorageError
from kvchat.platform import sqlite_locks
from kvchat.platform.private_files import sync
from kvchat.platform.writer_liveness import is_any_alive
from kvchat.session.database import rows
from kvchat.session.database.backups import alone, backup_paths, beside, has_backup
from kvchat.session.database.plain_tables import Tables
from kvchat.session.database.silent_damage import damage_mark
from kvchat.session.salvage import log_repair
from kvchat.session.salvage.log_repair import PAGE_BYTES
from kvchat.session.salvage.relink import relink

_TABLES = ("sessions", "branches", "turns", "pieces")
# What every database of kvchat begins with: SQLite's name, page size, journal, and limits of the format.
_FIXED_HEADER = b"SQLite format 3\0" + bytes([0x10, 0, 2, 2, 0, 64, 32, 32])
_NEWEST_FORMAT = 2
_MOST_SINGLE_ROWS = 10_000
# Decoding fails where SQLite's own message quotes damaged bytes.
_UNREADABLE = (sqlite3.Error, UnicodeDecodeError, MemoryError)
_LOGS_S = 20.0
"""For so long it is tried with which of several logs nothing is damaged, in memory."""
_MOST_TRIED_BYTES = 2**28


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageReport:
    """What a salvage found.

    Args:
        set_aside: where the damaged file is now; its log lies beside it.
        num_sessions, num_turns: what the new file has.
        num_damaged_turns: those of them that are whole nowhere.
    """

    set_aside: Path
    num_sessions: int
    num_turns: int
    num_damaged_turns: int


def salvage(path: Path, tables: Tables) -> SalvageReport | None:
    """Replace a database by a new one with what can be read of it, if it is damaged.

    It is taken to be damaged where it is marked (see `damage_mark`), and where the file shows damage that
    SQLite would pass over in silence. An interrupted salvage is finished by the next one.

    Args:
        tables: how rows lie in it, and in the new one.

    Returns: what was found; None: there is no damage to be seen, or another process was faster.

    Raises:
        StorageError: it is damaged, and another process is writing to it.
        sqlite3.Error, OSError: the new file cannot be written; the old one is where it was.
    """
    if _is_emptied(path) or _has_unknown_format(path) or _has_damaged_log(path):
        damage_mark(path).touch(0o600)
    if not damage_mark(path).exists():
        return None
    with alone(path):
        return _replace(path, tables) if damage_mark(path).exists() else None


def looks_like_ours(path: Path) -> bool:
    """Return whether a file that SQLite does not know is rather a damaged database than something else."""
    size = path.stat().st_size
    return has_backup(path) or (size >= 4 * PAGE_BYTES and size % PAGE_BYTES == 0)


def _is_emptied(path: Path) -> bool:
    """Return whether a file has not even a page, although there is a copy of what it held.

    SQLite takes it for a new one, and forgets its log.
    """
    return path.stat().st_size < PAGE_BYTES and has_backup(path)


def _has_unknown_format(path: Path) -> bool:
    """Return whether a database names a format that SQLite would read and never write: damage alone does."""
    head = sqlite_locks.first_bytes(path, len(_FIXED_HEADER))
    return head[:16] == _FIXED_HEADER[:16] and max(head[18:20], default=0) > _NEWEST_FORMAT


def _has_damaged_log(path: Path) -> bool:
    """Return whether SQLite would take back what its log holds behind a damaged byte, and say nothing.

    Only looked at while nobody writes; somebody may begin to, and then it becomes another.
    """
    if is_any_alive(path.parent / "writers"):
        return False
    log = _log_of(path)
    return log_repair.repaired(log) is not None and _log_of(path) == log


def _replace(path: Path, tables: Tables) -> SalvageReport:
    """Put a new database in the place of a damaged one."""
    if is_any_alive(path.parent / "writers"):
        raise StorageError(
            f"{path} is damaged, and another kvchat is writing to it; close that and try again"
        )
    aside = _set_aside(path)
    new = beside(path, ".new")
    new.unlink(missing_ok=True)
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(new, isolation_level=None)) as target:
        target.row_factory = sqlite3.Row
        target.execute("PRAGMA synchronous = FULL")
        tables.migrate(target, new)
        first_pages = [sqlite_locks.first_bytes(new, PAGE_BYTES)]
        target.execute("VACUUM")
        first_pages.append(sqlite_locks.first_bytes(new, PAGE_BYTES))
        tables.show(target)
        _collect(target, tables, _sources(aside, backup_paths(path), first_pages, tables))
        report = _report(target, aside)
    # The log goes first, since it must never lie beside the new file; if this process ends here, the next
    # one finds it beside the file that was set aside.
    for suffix in ("-wal", "-shm"):
        beside(path, suffix).unlink(missing_ok=True)
    new.rename(path)
    sync(path.parent)  # the mark must outlive a loss of power until then
    damage_mark(path).unlink(missing_ok=True)
    sync(path.parent)
    return report


def _report(target: sqlite3.Connection, aside: Path) -> SalvageReport:
    turns = [rows.is_whole("turns", row) for row in target.execute("SELECT * FROM turns")]
    (num_sessions,) = target.execute("SELECT count(*) FROM sessions").fetchone()
    return SalvageReport(
        set_aside=aside, num_sessions=num_sessions, num_turns=len(turns), num_damaged_turns=turns.count(False)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where rows may be had. `is_older`: others have newer rows; `head`: what the file is made to begin with;
    `log`: what is read for its log.
    """

    path: Path
    is_older: bool = False
    head: bytes = _FIXED_HEADER
    log: bytes | None = None


def _sources(
    aside: Path, backups: Sequence[Path], first_pages: Iterable[bytes], tables: Tables
) -> list[_Source]:
    """Return where rows may be had, the best first.

    Args:
        first_pages: of a new database, and of one that was rewritten (see `erasure`): where tables begin
            is on the first page alone. The damaged file is also read with the one that finds more whole rows.
    """
    log = log_repair.repaired(_log_of(aside))
    repaired = [] if log is None else [_Source(path=aside, log=_likeliest_log(aside, log, tables))]
    # Without its repaired log the file itself is as it was some messages ago.
    is_older = bool(repaired)
    heads = [_Source(path=aside, is_older=is_older, head=_own_size(page)) for page in first_pages]
    return [
        *repaired,
        _Source(path=aside, is_older=is_older),
        max(heads, key=partial(_num_whole, tables=tables)),
        *(_Source(path=backup, is_older=True) for backup in backups),
    ]


def _likeliest_log(database: Path, log: log_repair.RepairedLog, tables: Tables) -> bytes:
    """Return the log with which least in the database is damaged; if none can be tried, the likeliest."""
    until_s = time.monotonic() + _LOGS_S
    versions = log.versions(database)
    best, least = next(iter(versions), log), inf
    if database.stat().st_size <= _MOST_TRIED_BYTES:
        below = database.read_bytes()
        for version in versions:
            if least == 0 or time.monotonic() >= until_s:
                break
            num_damaged = _num_damaged(version, below, tables)
            if num_damaged < least:
                best, least = version, num_damaged
    return best.data


def _num_damaged(log: log_repair.RepairedLog, below: bytes, tables: Tables) -> float:
    """Return how many rows are damaged in a database with its log; infinity if it is no sound database."""
    # A column may have another name; and not every SQLite reads a database from memory.
    unknown = (*_UNREADABLE, LookupError, AttributeError)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection, suppress(*unknown):
        connection.row_factory = sqlite3.Row
        connection.deserialize(log.on(below))
        if connection.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
            return inf
        return sum(
            not tables.is_whole(table, row)
            for table in _TABLES
            for row in connection.execute(f"SELECT * FROM {tables.stored_name(table)}")
        )
    return inf


def _collect(target: sqlite3.Connection, tables: Tables, sources: list[_Source]) -> None:
    """Copy what can be read, as it lies: whole rows first, from whichever source has them."""
    target.execute("BEGIN IMMEDIATE")
    columns = {table: _columns(target, tables.stored_name(table)) for table in _TABLES}
    older: dict[tuple[str, str], str | None] = {}  # leaves
    for takes_damaged in (False, True):
        for source in sources:
            with _opened(source, tables) as connection:
                for table in _TABLES:
                    stored = tables.stored_name(table)
                    for row in _rows(connection, stored):
                        is_newest = not (source.is_older and _changes(table, row))
                        # A damaged name of a column: another source has the row with its value.
                        is_whole = columns[table].keys() <= set(row.keys()) and tables.is_whole(table, row)
                        if takes_damaged or (is_newest and is_whole):
                            _insert(target, stored, row, columns[table])
                        elif table == "branches" and is_whole:
                            older.setdefault((row["session_id"], row["name"]), row["leaf_id"])
    relink(target, older)
    target.execute("COMMIT")


def _num_whole(source: _Source, tables: Tables) -> int:
    """Return how many whole rows a source has."""
    with _opened(source, tables) as connection:
        return sum(
            tables.is_whole(table, row)
            for table in _TABLES
            for row in _rows(connection, tables.stored_name(table))
        )


def _own_size(first_page: bytes) -> bytes:
    """Return a first page without a number of pages, so that SQLite asks the file."""
    page = bytearray(first_page)
    page[: len(_FIXED_HEADER)] = _FIXED_HEADER
    page[28:32] = bytes(4)
    return bytes(page)


@contextmanager
def _opened(source: _Source, tables: Tables) -> Iterator[sqlite3.Connection]:
    """Open a copy of a source; an empty database if there is no such source."""
    with TemporaryDirectory(dir=source.path.parent) as place:
        copy = Path(place) / "copy.db"
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(beside(source.path, suffix), beside(copy, suffix))
        if source.log is not None:
            beside(copy, "-wal").write_bytes(source.log)
        elif copy.exists():
            with open(copy, "r+b") as file:
                file.write(source.head)
        with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            connection.text_factory = lambda data: data.decode(errors="replace")
            with suppress(*_UNREADABLE, StorageError):  # then it is read as far as it goes
                # Else one damaged statement hides all tables.
                connection.execute("PRAGMA writable_schema = ON")
                tables.migrate(connection, copy)
            yield connection


def _rows(source: sqlite3.Connection, table: str) -> Iterator[sqlite3.Row]:
    """Yield the rows of a table from both ends, and single ones between, until nothing more is readable."""
    try:
        source.execute(f"EXPLAIN SELECT rowid, * FROM {table}")
    except _UNREADABLE:
        return  # no statement can be made of a table that is not known, for none of its rows
    query = f"SELECT rowid AS row_num, * FROM {table} WHERE rowid"
    with suppress(*_UNREADABLE):  # a damaged number
        yield from source.execute(f"{query} <= 0")
    first, last = 0, 1 << 62
    with suppress(*_UNREADABLE):
        for row in source.execute(f"{query} > 0 ORDER BY rowid ASC"):
            first = row["row_num"]
            yield row
        return
    with suppress(*_UNREADABLE):
        for row in source.execute(f"{query} < ? ORDER BY rowid DESC", (last,)):
            if row["row_num"] <= first:
                return
            last = row["row_num"]
            yield row
    for place in range(first + 1, min(last, first + _MOST_SINGLE_ROWS)):
        with suppress(*_UNREADABLE):
            yield from source.execute(f"{query} = ?", (place,))


def _changes(table: str, row: sqlite3.Row) -> bool:
    """Whether a damaged newer row counts for more than this older one: of an answer that is not finished the
    older has less, and a branch has gone on since.
    """
    return table in ("pieces", "branches") or (table == "turns" and row["finish"] == "partial")


def _columns(target: sqlite3.Connection, table: str) -> dict[str, str]:
    """Return the kind of each column of a table."""
    return {column[1]: column[2] for column in target.execute(f"PRAGMA table_info({table})")}


def _insert(target: sqlite3.Connection, table: str, row: sqlite3.Row, kinds: Mapping[str, str]) -> None:
    values = {name: _fitting(row[name], kinds[name]) for name in row.keys() if name in kinds}  # noqa: SIM118
    if "num" in kinds:  # without it, where its name is damaged, the row would be another one
        values.setdefault("num", row["row_num"])
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    with suppress(sqlite3.Error):  # nothing where something must be
        statement = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})"
        target.execute(statement, tuple(values.values()))


def _fitting(value: object, kind: str) -> object:
    """Return a damaged value as one of its column's type; its digest tells that it is another."""
    if value is None:
        return None
    if kind == "TEXT":
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    if kind == "BLOB":
        return value if isinstance(value, bytes) else b""
    return value if isinstance(value, int | float) else 0


def _log_of(path: Path) -> bytes:
    try:
        return beside(path, "-wal").read_bytes()
    except FileNotFoundError:
        return b""


def _set_aside(path: Path) -> Path:
    """Give a damaged file and its log names that stay, and return the file's; a salvage that was cut off
    has given them already.
    """
    number = 1
    while (aside := beside(path, f".damaged-{number}")).exists() and not aside.samefile(path):
        number += 1
    for suffix in ("", "-wal"):
        link, damaged = beside(aside, suffix), beside(path, suffix)
        if damaged.exists() and not link.exists():
            try:
                link.hardlink_to(damaged)
            except OSError:  # this file system has no second names
                link.touch(0o600)  # a copy would have what the umask leaves
                shutil.copyfile(damaged, link)
    return aside
