"""Session database: one SQLite file behind one lock, with transactions, permissions, errors that advise."""

import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from time import monotonic, sleep

from kvchat.errors import StorageError
from kvchat.platform import sqlite_locks
from kvchat.platform.private_files import make_private
from kvchat.session.database import backups, erasure, schema
from kvchat.session.database.plain_tables import PLAIN, Tables
from kvchat.session.database.silent_damage import DamageFound, damage_mark, refuse_damage
from kvchat.session.salvage.salvage import SalvageReport, looks_like_ours, salvage

log = logging.getLogger(__name__)

_BUSY_S = 10.0

# An error that quotes damaged bytes cannot be told, and becomes one of decoding.
_SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)

# What SQLite says of a schema, a format or a version that kvchat cannot have written.
_SCHEMA_DAMAGE = (
    "no such table",
    "no such module",
    "duplicate column name",
    "unsupported file format",
    "SQL logic error",
)

_ADVICE = {
    "SQLITE_FULL": "the disk is full; free some space and send the message again",
    "SQLITE_READONLY": "it cannot be written; check its permissions, or choose another --data-dir",
    "SQLITE_PERM": "access was refused; check its permissions, or choose another --data-dir",
    "SQLITE_AUTH": "access was refused; check its permissions, or choose another --data-dir",
    "SQLITE_CANTOPEN": "it cannot be opened; check that the directory exists and is yours to write",
    "SQLITE_BUSY": "another program holds it locked; close that program and try again",
    "SQLITE_LOCKED": "another program holds it locked; close that program and try again",
    "SQLITE_CORRUPT": "it is damaged; start kvchat again: what can be read moves to a new file",
    "SQLITE_NOTADB": "it is not a kvchat database; move it away, or choose another --data-dir",
    "SQLITE_IOERR": "reading or writing failed; check the disk and its free space, then try again",
    "SQLITE_TOOBIG": "a message is larger than the database takes; shorten it",
}


class Database:
    """A connection that several threads may use, one at a time.

    One connection and one lock rather than a connection per thread: every operation is short, and nothing is
    left open by threads that end.

    Attributes:
        salvaged: what a salvage by this process has found; None: there was none.
    """

    salvaged: SalvageReport | None = None

    def __init__(self, path: Path, tables: Tables = PLAIN) -> None:
        """Open the file; one that was found to be damaged is replaced by what can be read of it.

        Raises: StorageError: it cannot be opened; the message says what to do.
        """
        self.path = path
        self._tables = tables
        self._lock = RLock()
        self._is_unerased = False
        with self._errors_told():
            _create_private(path)
            self._salvage()
            try:
                self._connection, self._opened = self._open()
            except _SQLITE_ERRORS as error:
                if not _is_damage(error, path):
                    raise
                damage_mark(path).touch(0o600)
                self._salvage()
                self._connection, self._opened = self._open()
            self._num_changes = self._connection.total_changes

    def close(self) -> None:
        """Close the file; once a day a backup is written beside it."""
        with self._lock:
            # Without a copy less can be recovered; nothing else depends on it. It may be closed already.
            with suppress(StorageError), self._errors_told():
                if self._is_unerased or erasure.is_owed(self.path):
                    self.erase()
                if self._connection.total_changes > self._num_changes:
                    backups.back_up(self._connection, self.path)
            self._connection.close()

    @contextmanager
    def delete(self) -> Iterator[sqlite3.Connection]:
        """Give the connection as `write` does, to delete words; `erase` takes them out of the files."""
        with self._lock:
            with suppress(OSError):  # on a full disk too something can be deleted
                erasure.owe(self.path)
            with self.write() as connection:
                yield connection

    def erase(self, *, is_writing: bool = False) -> None:
        """Take what was deleted out of every file that this database has, as far as that can be done now; see
        `remains`. O(all).

        A large database waits until nobody else has it open: pieces of answers would wait for it otherwise.

        Args:
            is_writing: whether an answer is being written here.
        """
        try:
            with self._lock, self._errors_told():
                self._follow()
                if erasure.is_long(self.path) and (is_writing or not sqlite_locks.is_alone(self._connection)):
                    self._is_unerased = not erasure.is_owed(self.path)
                    return
                erasure.erase(self._connection, self.path, indexes_words=self._tables.encryptor is None)
            self._is_unerased = False
        except StorageError as error:
            log.warning("deleted words are still in some files: %s", error)
            self._is_unerased = True

    def empty_log(self) -> None:
        """Take what was deleted out of the log alone, where it lies in no copy."""
        try:
            with self._lock, self._errors_told():
                self._follow()
                sqlite_locks.empty_log(self._connection)
        except StorageError as error:
            log.warning("deleted words are still in the log: %s", error)
            with suppress(OSError):
                erasure.owe(self.path)
            self._is_unerased = not erasure.is_owed(self.path)

    def may_be_copied(self, since: float) -> bool:
        """Whether a copy of it may hold what was stored at or after a time."""
        with self._errors_told():
            return erasure.may_be_copied(self.path, since)

    def remains(self) -> Sequence[str]:
        """Return in which files deleted words may still be read, each with what to do about it."""
        with self._errors_told():
            return erasure.remains(self.path, is_unerased=self._is_unerased)

    @contextmanager
    def read(self, patience_s: float = -1) -> Iterator[sqlite3.Connection]:
        """Give the connection for queries.

        Args:
            patience_s: how long to wait for whoever uses it, who may wait for another process; below 0: until
                it is free.

        Raises: StorageError: that took longer.
        """
        if not self._lock.acquire(timeout=patience_s):
            raise StorageError(f"{self.path}: it is in use; try again")
        try:
            with self._errors_told():
                yield self._connection
        finally:
            self._lock.release()

    @contextmanager
    def search(self) -> Iterator[sqlite3.Connection]:
        """Give the connection for queries, with the index of words up to date."""
        with self.read() as connection:
            self._tables.index_words(connection)
            yield connection

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Give the connection inside a transaction, which is undone if the block raises.

        Args:
            durable: wait until it is on the medium, with everything before it. Otherwise it survives the end
                of the process, and a loss of power may undo it.
        """
        with self._lock, self._errors_told():
            self._follow()
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                # A full disk may have undone it already, or closing, if a signal came just before the block.
                with suppress(sqlite3.ProgrammingError):
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                # An index that lacks a row's entry refuses what the rows allow.
                if isinstance(error, sqlite3.IntegrityError):
                    refuse_damage(self._connection)
                raise

    def _note_damage(self, error: Exception) -> None:
        """Leave a mark for the next start where a new file helps."""
        if _is_damage(error, self.path):
            with suppress(OSError):
                damage_mark(self.path).touch(0o600)

    def _open(self) -> tuple[sqlite3.Connection, "_Identity | None"]:
        """Open the file and return which it was, since another may get its name at any time."""
        while True:
            found = _identity(self.path)
            self._tables.check(self.path)
            # Transactions are written out: sqlite3's own begin too late for a compare-and-set.
            connection = sqlite_locks.connect(self.path, timeout_s=_BUSY_S)
            try:
                # Waits for whoever writes another file in place of this one; a log that is begun after that
                # would lie beside the other file.
                connection.execute("SELECT 1 FROM sqlite_master").fetchone()
                if _identity(self.path) == found:
                    self._prepare(connection)
                    return connection, found
            except BaseException:
                connection.close()
                raise
            connection.close()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.row_factory = sqlite3.Row
        # Damaged text must not keep the rest from opening.
        connection.text_factory = lambda data: data.decode(errors="replace")
        _set_wal(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")
        self._tables.migrate(connection, self.path)
        self._tables.show(connection)

    def _follow(self) -> None:
        """Open the file that has the name now, if another process has put a recovered one in its place."""
        found = _identity(self.path)
        if found is not None and found != self._opened:
            self._connection.close()
            self._connection, self._opened = self._open()
            self._num_changes = 0

    def restore(self) -> bool:
        """Replace the open file if it was found to be damaged, and return whether it was; see `salvaged`.

        Raises: StorageError: it is damaged, and answers are being written to it.
        """
        with self._lock, self._errors_told():
            if not damage_mark(self.path).exists():
                return False
            self._connection.close()
            try:
                self._salvage()
            finally:
                self._connection, self._opened = self._open()
            return True

    def _salvage(self) -> None:
        report = salvage(self.path, self._tables)
        if report is not None:
            self.salvaged = report
            log.warning(
                "%s was damaged; what can be read is in a new file (%d turns, %d damaged), the old is %s",
                self.path,
                report.num_turns,
                report.num_damaged_turns,
                report.set_aside,
            )

    @contextmanager
    def _errors_told(self) -> Iterator[None]:
        try:
            yield
        except _SQLITE_ERRORS as error:
            self._note_damage(error)
            raise StorageError(f"{self.path}: {_advice(error)} ({error})") from error
        except OSError as error:
            detail = error.strerror or error
            raise StorageError(
                f"{error.filename or self.path}: {detail}; check permissions and free space, "
                "or choose another --data-dir"
            ) from error


class MemoryDatabase(Database):
    """The same in the memory of this process: nothing of it is in a file at any time."""

    def __init__(self) -> None:
        self.path = Path(":memory:")
        self._tables = PLAIN
        self._lock = RLock()
        with self._errors_told():
            self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA temp_store = MEMORY")
            self._prepare(self._connection)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def delete(self) -> Iterator[sqlite3.Connection]:
        """Give the connection as `write` does."""
        with self.write() as connection:
            yield connection

    def erase(self, *, is_writing: bool = False) -> None:
        """Nothing: there are no files."""

    def empty_log(self) -> None:
        """Nothing, too."""

    def may_be_copied(self, since: float) -> bool:
        return False

    def remains(self) -> Sequence[str]:
        return ()

    def _follow(self) -> None:
        """Nothing: no other process can reach it."""

    def _note_damage(self, error: Exception) -> None:
        """Nothing: it does not outlive this process."""


_Identity = tuple[int, int]


def _identity(path: Path) -> _Identity | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _is_damage(error: Exception, path: Path) -> bool:
    """Whether a new file with what can be read of this one helps."""
    if isinstance(error, DamageFound | UnicodeDecodeError):
        return True
    name = getattr(error, "sqlite_errorname", None) or ""
    if name == "SQLITE_NOTADB":
        return looks_like_ours(path)
    if name == "SQLITE_ERROR" and "already exists" in str(error):
        return backups.has_backup(path)  # without one it may be another program's
    is_schema = name == "SQLITE_ERROR" and any(words in str(error) for words in _SCHEMA_DAMAGE)
    return name.startswith("SQLITE_CORRUPT") or (is_schema and not schema.lacks_words(error))


def _advice(error: Exception) -> str:
    name = getattr(error, "sqlite_errorname", None) or ""
    if isinstance(error, DamageFound | UnicodeDecodeError):
        name = "SQLITE_CORRUPT"
    for known, advice in _ADVICE.items():
        if name == known or name.startswith(known + "_"):
            return advice
    if schema.lacks_words(error):
        return "this Python's SQLite has no full-text search; install a Python whose sqlite3 has FTS5"
    return "the session database could not be used"


def _create_private(path: Path) -> None:
    """Create the file for its owner alone; directories that are missing too."""
    make_private(path.parent)
    sqlite_locks.create(path)
    status = path.stat()
    if status.st_mode & 0o077 and status.st_uid == os.getuid():
        path.chmod(0o600)


def _set_wal(connection: sqlite3.Connection) -> None:
    # Changing the journal mode ignores the busy timeout when two processes create the file at once.
    deadline = monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or monotonic() > deadline:
                raise
            sleep(0.02)
