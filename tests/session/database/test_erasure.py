"""What is deleted can be read in no file any more, or the file is named."""

import fcntl
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from threading import Thread

import pytest

from kvchat.errors import StorageError
from kvchat.session.database.backups import backup_paths
from kvchat.session.database.silent_damage import damage_mark
from kvchat.session.store import SessionStore
from kvchat.session.tree import MAIN, Branch, SessionId
from tests.cli.secret_home import files_with
from tests.damage import flip
from tests.patience import PATIENCE_S
from tests.session.turns import exchange, question
from tests.threads import wait_until_in

pytestmark = [pytest.mark.pure, pytest.mark.long]

ROOT = Path(__file__).parents[3]
SECRET = "quixotry"
DOOMED = (b"quixotry", b"Quixotry")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database of two conversations of which one holds the secret everywhere, closed."""
    path = tmp_path / "sessions.db"
    with closing(SessionStore(path)) as store:
        kept, doomed = begin(store, "kept"), begin(store, f"about {SECRET}")
        for number in range(12):
            kept = exchange(store, kept, f"question {number}" * 30, f"reply {number}" * 30)
            doomed = exchange(store, doomed, f"{SECRET} {number} " * 30, f"Quixotry {number} " * 30)
    return path


def begin(store: SessionStore, title: str) -> Branch:
    return store.branch(store.create_session(title=title, system=f"system {title}").id, MAIN)


def the_doomed(store: SessionStore) -> SessionId:
    return next(one.session.id for one in store.list_sessions() if SECRET in one.session.title)


def test_no_file_holds_a_word_of_a_deleted_session(path: Path) -> None:
    """With a window open beside it, copies of two days, and what killed processes have left."""
    with closing(SessionStore(path)) as window, closing(SessionStore(path)) as store:
        doomed = the_doomed(store)
        exchange(window, window.branch(doomed, MAIN), f"once more {SECRET}", "Quixotry, as ever.")
        store.unsent.keep(doomed, f"not sent: {SECRET}")
        whole, unsent = path.read_bytes(), path.parent / "unsent"
        left = (".backup", ".backup.1", ".backup.new", ".backup.new-journal", ".converting", ".new")
        files = [*(path.with_name(path.name + end) for end in left), unsent / f".{doomed}.000002-1.json.ab"]
        (path.parent / "tmp1234").mkdir()
        for file in (*files, path.parent / "tmp1234" / "copy.db", path.parent / "tmp1234" / "copy.db-wal"):
            file.write_bytes(whole)
        assert len(files_with(path.parent, *DOOMED)) == 12
        store.delete_session(doomed)
        assert not files_with(path.parent, *DOOMED)
        assert not store.still_readable()
        assert [one.session.title for one in window.list_sessions()] == ["kept"]
        assert len(window.search("reply")) == 12


def test_rows_that_moved_between_pages_leave_no_words_there(tmp_path: Path) -> None:
    """SQLite overwrites a row where it lies, not where it lay before its page was joined with another."""
    path, random, names = tmp_path / "sessions.db", Random(2), {}
    with closing(SessionStore(path)) as store:
        with store._database.write() as connection:
            for number in map(str, range(200)):
                names[number] = "".join(random.choice("QWXYZ") for _ in range(12))
                title, system = "t" * random.randint(2, 30), "s" * random.randint(0, 100)
                connection.execute(
                    "INSERT INTO sessions (id, title, system, model, created_at, updated_at, active_branch)"
                    " VALUES (?, ?, ?, '', 1.0, 1.0, 'main')",
                    (number, title + names[number], system + names[number]),
                )
        doomed = random.sample(sorted(names), 100)
        with store._database.delete() as connection:
            connection.executemany("DELETE FROM sessions WHERE id = ?", [(one,) for one in doomed])
        store.erase_deleted()
        data = path.read_bytes()
        assert not [one for one in doomed if names[one].encode() in data]


def test_a_deleted_branch_and_an_aside_leave_no_words_either(path: Path) -> None:
    with closing(SessionStore(path)) as store:
        session = next(one.session for one in store.list_sessions() if one.session.title == "kept")
        main = store.branch(session.id, MAIN)
        fork = store.create_branch(session.id, leaf_id=main.leaf_id, name="fork")
        exchange(store, fork, "a marmalade", "more marmalade")
        store.remove_branch(session.id, "fork")
        assert not files_with(path.parent, b"marmalade")
        asked = question(session.id, "an orchestra", parent=main.leaf_id)
        store.withdraw(store.add_turns(main, (asked,)), main.leaf_id, [asked.id])
    assert not files_with(path.parent, b"orchestra")


def test_a_process_that_is_killed_before_it_erased_leaves_that_to_the_next(path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from kvchat.session.database import erasure
from kvchat.session.store import SessionStore
erasure.erase = lambda *_, **__: os._exit(3)
store = SessionStore(Path(sys.argv[1]))
store.delete_session(sys.argv[2])
"""
    with closing(SessionStore(path)) as store:
        doomed = the_doomed(store)
    command = [sys.executable, "-c", script, str(path), doomed]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=PATIENCE_S, check=False)
    assert killed.returncode == 3, killed.stderr
    assert backup_paths(path)[0] in files_with(path.parent, *DOOMED)
    with closing(SessionStore(path)) as store:
        (words,) = store.still_readable()
        assert str(path) in words
        exchange(store, begin(store, "next"), "hello", "hi")
    assert not files_with(path.parent, *DOOMED)


def test_a_copy_that_was_begun_before_the_deletion_does_not_outlive_it(path: Path) -> None:
    """Another process, which ends just then, holds the lock until its copy is whole."""
    newest, _ = backup_paths(path)
    whole = newest.read_bytes()
    with closing(SessionStore(path)) as store, open(path.with_name(path.name + ".recovery"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        deleting = Thread(target=store.delete_session, args=(the_doomed(store),))
        deleting.start()
        wait_until_in(deleting, "alone")
        newest.write_bytes(whole)
        fcntl.flock(lock, fcntl.LOCK_UN)
        deleting.join()
        assert not files_with(path.parent, *DOOMED)


def test_a_log_that_another_program_reads_is_named_until_it_is_empty(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        with closing(SessionStore(path)) as store:
            with store._database.read() as connection:
                connection.execute("PRAGMA busy_timeout = 10")
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM turns").fetchone()
            store.delete_session(the_doomed(store))
            (words,) = store.still_readable()
            assert "sessions.db-wal" in words
            assert "close what else reads" in words
            reader.execute("COMMIT")
        assert not files_with(path.parent, *DOOMED)
    with closing(SessionStore(path)) as store:
        assert not store.still_readable()


def test_a_damaged_database_that_was_kept_is_named(path: Path) -> None:
    damage_mark(path).touch()
    with closing(SessionStore(path)) as store:
        store.delete_session(the_doomed(store))
        kept = files_with(path.parent, *DOOMED)
        assert kept == [path.with_name("sessions.db.damaged-1")]
        assert [str(file) in words for file, words in zip(kept, store.still_readable(), strict=True)]
        kept[0].unlink()
        assert not store.still_readable()


@pytest.mark.parametrize("place", [47, 60, 104, 677])
def test_what_is_left_is_found_without_its_first_page(path: Path, place: int) -> None:
    """Tables begin elsewhere in a file that was written anew, and only the first page says where."""
    with closing(SessionStore(path)) as store:
        store.delete_session(the_doomed(store))
        before = words_in(store)
    for copy in backup_paths(path):
        copy.unlink(missing_ok=True)
    flip(path, place, 0x21)
    with suppress(StorageError), closing(SessionStore(path)) as store:
        words_in(store)  # the next start meets what this one may have found
    with closing(SessionStore(path)) as store:
        assert words_in(store) == before
    assert path.with_name("sessions.db.damaged-1").exists()


def words_in(store: SessionStore) -> list[str]:
    return [turn.text for one in store.list_sessions() for turn in store.all_turns(one.session.id)]


def test_a_session_in_which_nothing_was_said_is_deleted_at_the_cost_of_its_rows(path: Path) -> None:
    """The database is not written anew, and its copies stay."""
    with closing(SessionStore(path)) as store:
        bare = store.create_session(title="a marmalade", system="more marmalade").id
        told = traced(store)
        store.delete_session(bare)
        assert not [one for one in told if "VACUUM" in one or "optimize" in one]
        assert not store.still_readable()
        assert not files_with(path.parent, b"marmalade")
    assert not path.with_name("sessions.db.unerased").exists()
    assert backup_paths(path)[0].exists()


def traced(store: SessionStore) -> list[str]:
    """Return a list that every statement of a store is added to from now on."""
    told: list[str] = []
    with store._database.read() as connection:
        connection.set_trace_callback(told.append)
    return told


def test_the_title_of_an_empty_session_goes_from_the_copies_too(path: Path) -> None:
    with closing(SessionStore(path)) as store:
        bare = store.create_session(title="a marmalade").id
        backup_paths(path)[0].unlink()
    assert backup_paths(path)[0] in files_with(path.parent, b"marmalade")
    with closing(SessionStore(path)) as store:
        store.delete_session(bare)
        assert not files_with(path.parent, b"marmalade")


@pytest.fixture
def large(path: Path) -> Path:
    """The same with so much in it that writing it anew takes long."""
    with closing(SessionStore(path)) as store:
        filler = begin(store, "filler")
        for number in range(10):
            filler = store.add_turns(filler, (question(filler.session_id, f"{number} " * 900_000),))
    assert path.stat().st_size > 16 << 20
    return path


def test_a_large_database_is_written_anew_when_the_last_one_leaves_it(large: Path) -> None:
    with closing(SessionStore(large)) as window:
        with closing(SessionStore(large)) as store:
            told = traced(store)
            store.delete_session(the_doomed(store))
            assert "VACUUM" not in told
            (words,) = store.still_readable()
            assert str(large) in words
        assert window.still_readable()
    assert not files_with(large.parent, *DOOMED)
    with closing(SessionStore(large)) as store:
        assert not store.still_readable()


def test_a_large_database_that_nobody_else_has_open_is_written_anew_at_once(large: Path) -> None:
    with closing(SessionStore(large)) as store:
        store.delete_session(the_doomed(store))
        assert not files_with(large.parent, *DOOMED)
        assert not store.still_readable()


def test_what_was_deleted_goes_from_the_file_that_has_the_name_now(path: Path) -> None:
    """Another process has put a recovered one in its place."""
    with closing(SessionStore(path)) as store:
        store.list_sessions()
        with closing(SessionStore(path)) as other:
            doomed = the_doomed(other)
        damage_mark(path).touch()
        with closing(SessionStore(path)) as other:
            other.create_session(title="another")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA foreign_keys = OFF")
            for table in ("turns", "branches"):
                connection.execute(f"DELETE FROM {table} WHERE session_id = ?", (doomed,))
            connection.execute("DELETE FROM sessions WHERE id = ?", (doomed,))
        assert path in files_with(path.parent, *DOOMED)
        store.erase_deleted()
        assert path not in files_with(path.parent, *DOOMED)
