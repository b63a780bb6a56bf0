"""Looking at a database's file costs this process none of its locks on it."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.platform import sqlite_locks
from kvchat.session.store import SessionStore

pytestmark = pytest.mark.pure

# Writes to a database and leaves: the last process to leave takes the log away.
VISITOR = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=5)
connection.execute("CREATE TABLE visit (at)")
connection.execute("DROP TABLE visit")
connection.commit()
connection.close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rows.db"
    sqlite_locks.create(path)
    return path


def visit(path: Path) -> None:
    subprocess.run([sys.executable, "-c", VISITOR, str(path)], check=True, cwd=path.parent)


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def num_descriptors(path: Path) -> int:
    names = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(name.exists() and name.samefile(path) for name in names)


def look(path: Path) -> None:
    assert sqlite_locks.first_bytes(path, 16) == b"SQLite format 3\0"


def look_carelessly(path: Path) -> None:
    path.read_bytes()


@pytest.mark.parametrize("how", [look, look_carelessly])
def test_a_log_stays_while_its_database_is_looked_at(path: Path, how: Callable[[Path], None]) -> None:
    """The control: read as any other file, its locks are gone, and a process that leaves removes the log."""
    with closing(sqlite_locks.connect(path, timeout_s=5)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE word (text)")
        how(path)
        visit(path)
        assert log_of(path).exists() == (how is look)


def test_what_was_looked_at_is_closed_with_its_last_connection(path: Path) -> None:
    first, second = (sqlite_locks.connect(path, timeout_s=5) for _ in range(2))
    first.execute("CREATE TABLE word (text)")
    for _ in range(3):
        look(path)
    first.close()
    assert num_descriptors(path) >= 4
    second.close()
    second.close()
    assert num_descriptors(path) == 0
    look(path)
    assert num_descriptors(path) == 0


def test_a_database_that_cannot_be_opened_holds_nothing(tmp_path: Path, path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sqlite_locks.connect(tmp_path / "none.db", timeout_s=5)
    with pytest.raises(sqlite3.OperationalError):
        sqlite_locks.connect(tmp_path, timeout_s=5)
    look_at = tmp_path / "other.db"
    look_at.write_bytes(b"short")
    assert sqlite_locks.first_bytes(look_at, 16) == b"short"
    assert num_descriptors(look_at) == 0


def test_a_file_that_is_there_stays_as_it_is(path: Path) -> None:
    path.write_bytes(b"something")
    path.chmod(0o640)
    sqlite_locks.create(path)
    assert path.read_bytes() == b"something"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_second_catalog_in_one_process_takes_no_lock_from_the_first(tmp_path: Path) -> None:
    with closing(CacheAdmin(tmp_path)):
        (index,) = tmp_path.rglob("index.db")
        CacheAdmin(tmp_path).close()
        visit(index)
        assert log_of(index).exists()


def test_a_second_store_in_one_process_takes_no_lock_from_the_first(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with closing(SessionStore(path)) as store:
        store.create_session(title="first")
        SessionStore(path).close()
        visit(path)
        assert log_of(path).exists()
        store.create_session(title="second")
    with closing(SessionStore(path)) as store:
        assert sorted(one.session.title for one in store.list_sessions()) == ["first", "second"]


def test_a_database_that_cannot_be_written_anew_says_so_and_is_as_patient_as_before(path: Path) -> None:
    """Neither can its log be emptied then, and that must not be told instead."""
    with closing(sqlite_locks.connect(path, timeout_s=7.0)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE t (x)")
        with pytest.raises(sqlite3.OperationalError, match="cannot VACUUM"):
            sqlite_locks.compact(connection)
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (7000,)
