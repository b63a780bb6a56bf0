"""A database that SQLite cannot read is replaced by one with every row that still can be."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from kvchat.errors import KvchatError, StorageError
from kvchat.session.recovery import backup_paths, damage_mark
from kvchat.session.store import SessionStore
from kvchat.session.tree import MAIN, Turn
from tests.session.turns import exchange

pytestmark = pytest.mark.pure

PAGE = 4096
ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database of three long conversations, closed."""
    path = tmp_path / "sessions.db"
    with closing(SessionStore(path)) as store:
        for name in ("one", "two", "three"):
            session = store.create_session(title=name)
            branch = store.branch(session.id, MAIN)
            for number in range(8):
                branch = exchange(store, branch, f"{name} {number}" * 40, f"reply {number}" * 40)
    return path


def words(path: Path) -> set[str]:
    with closing(SessionStore(path)) as store:
        return {turn.text for turn in turns(store) if not turn.damaged}


def turns(store: SessionStore) -> list[Turn]:
    return [turn for one in store.list_sessions() for turn in store.all_turns(one.session.id)]


def test_a_page_that_is_gone_costs_its_rows_at_most(path: Path) -> None:
    """Without a copy what is on the other pages comes back; the damaged file stays beside."""
    whole, before = path.read_bytes(), words(path)
    for copy in backup_paths(path):
        copy.unlink(missing_ok=True)
    _damage_the_page_of(path, b"reply 3")
    left = _words_after_trouble(path)
    assert len(left) >= len(before) / 2
    assert left <= before
    kept = path.with_name("sessions.db.damaged-1")
    assert kept.exists()
    assert kept.stat().st_mode & 0o077 == 0
    assert path.stat().st_mode & 0o077 == 0
    assert len(whole) > 10 * PAGE


def test_the_backup_gives_what_the_page_had(path: Path) -> None:
    before = words(path)
    assert backup_paths(path)[0].exists()
    _damage_the_page_of(path, b"reply 3")
    assert _words_after_trouble(path) == before


@pytest.mark.parametrize("position", [0, 16, 18, 100, 105])
def test_a_damaged_head_of_the_file_costs_nothing_with_a_backup(path: Path, position: int) -> None:
    before = words(path)
    data = bytearray(path.read_bytes())
    data[position] ^= 0x5A
    path.write_bytes(data)
    assert _words_after_trouble(path) == before


def test_a_session_that_was_removed_does_not_live_on_in_a_copy(path: Path) -> None:
    assert backup_paths(path)[0].exists()
    with closing(SessionStore(path)) as store:
        store.delete_session(store.find("two").id)
        assert not any(copy.exists() for copy in backup_paths(path))
    _damage_the_page_of(path, b"reply 3")
    assert not any("two" in text for text in _words_after_trouble(path))


def test_nothing_is_replaced_while_another_process_writes(path: Path) -> None:
    with closing(SessionStore(path)) as other:
        session = other.find("one")
        exchange(other, other.branch(session.id, MAIN), "hello", "hi")
        damage_mark(path).touch()
        with pytest.raises(StorageError, match="another kvchat"):
            SessionStore(path)
    assert words(path)
    assert not damage_mark(path).exists()


def test_a_process_that_had_it_open_goes_on_in_the_new_file(path: Path) -> None:
    """Its words must not go to the file that was set aside."""
    with closing(SessionStore(path)) as idle:
        session = idle.find("one")
        damage_mark(path).touch()
        words(path)
        assert path.with_name("sessions.db.damaged-1").exists()
        exchange(idle, idle.branch(session.id, MAIN), "Still there?", "Yes.")
    assert {"Still there?", "Yes."} <= words(path)


def test_processes_that_start_at_once_recover_it_once(path: Path) -> None:
    before = words(path)
    _damage_the_page_of(path, b"reply 3")
    damage_mark(path).touch()
    script = "import sys; from pathlib import Path; from kvchat.session.store import SessionStore; "
    script += "print(len(SessionStore(Path(sys.argv[1])).list_sessions()))"
    command = [sys.executable, "-c", script, str(path)]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate(timeout=120)[0] for process in processes] == [b"3\n"] * 3
    assert [one.name for one in path.parent.glob("sessions.db.damaged*")] == ["sessions.db.damaged-1"]
    assert words(path) == before


@pytest.mark.parametrize("num_times", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_whatever_is_damaged_a_session_works_after_a_new_start(path: Path, num_times: int) -> None:
    before = words(path)
    whole, random = path.read_bytes(), Random(0)
    for _ in range(num_times):
        for leftover in path.parent.glob("sessions.db.damaged*"):
            leftover.unlink()
        at, size = random.randrange(len(whole)), random.choice([1, 16, 512, PAGE])
        junk = random.choice([bytes(size), random.randbytes(size)])
        path.write_bytes((whole[:at] + junk + whole[at + size :])[: len(whole)])
        assert _words_after_trouble(path) <= before
        try:
            _go_on(path)
        except StorageError:  # an index that only writing meets
            _go_on(path)
        assert words(path) <= before | {"Is it well?", "It is.", ""}  # an answer that was cut off there
        backup_paths(path)[0].touch()


def _go_on(path: Path) -> None:
    with closing(SessionStore(path)) as store:
        session = store.create_session()
        exchange(store, store.branch(session.id, MAIN), "Is it well?", "It is.")
        assert [turn.text for turn in store.all_turns(session.id)] == ["Is it well?", "It is."]


def _damage_the_page_of(path: Path, text: bytes) -> None:
    data = bytearray(path.read_bytes())
    page = data.index(text) // PAGE
    data[page * PAGE : (page + 1) * PAGE] = b"\xa5" * PAGE
    path.write_bytes(data)


def _words_after_trouble(path: Path) -> set[str]:
    """Return what can be read, if needs be after the one new start that the error asks for."""
    try:
        return words(path)
    except KvchatError:
        return words(path)
    finally:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
