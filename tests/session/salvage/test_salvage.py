"""A database that SQLite cannot read is replaced by one with every row that still can be."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

import pytest

from kvchat.errors import StorageError
from kvchat.session.database.backups import backup_paths
from kvchat.session.database.silent_damage import damage_mark
from kvchat.session.salvage.salvage import _set_aside
from kvchat.session.store import SessionStore
from kvchat.session.tree import MAIN, SessionId, Turn
from tests.damage import after_trouble, flip, flipped
from tests.patience import PATIENCE_S
from tests.session.turns import exchange

pytestmark = [pytest.mark.pure, pytest.mark.long]

PAGE = 4096
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of three long conversations, closed."""
    home = tmp_path_factory.mktemp("home")
    with closing(SessionStore(home / "sessions.db")) as store:
        for name in ("one", "two", "three"):
            session = store.create_session(title=name)
            branch = store.branch(session.id, MAIN)
            for number in range(8):
                branch = exchange(store, branch, f"{name} {number}" * 40, f"reply {number}" * 40)
    return home


@pytest.fixture
def path(home: Path, tmp_path: Path) -> Path:
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    return tmp_path / "sessions.db"


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


@pytest.mark.parametrize(
    "index", ["sqlite_autoindex_sessions_1", "sqlite_autoindex_turns_1", "turns_by_session"]
)
def test_an_index_that_lost_its_entries_hides_no_words(path: Path, index: str) -> None:
    """SQLite finds nothing through it, and says nothing."""
    before = words(path)
    _empty_the_index(path, index)
    with pytest.raises(StorageError, match="start kvchat again"):
        _use_all(path)
    assert before <= _words_after_trouble(path)


def test_an_index_that_refuses_what_the_rows_allow_is_damage(path: Path) -> None:
    before = words(path)
    with closing(SessionStore(path)) as store:
        session = store.find("one")
        _empty_the_index(path, "sqlite_autoindex_sessions_1")
        with pytest.raises(StorageError, match="start kvchat again"):
            store.create_branch(session.id, leaf_id=None)
    assert before <= _words_after_trouble(path)
    with closing(SessionStore(path)) as store:
        assert store.create_branch(session.id, leaf_id=None).name == "main-2"


def test_a_damaged_database_never_takes_the_place_of_its_good_copy(path: Path) -> None:
    """The copy is due, and the damage is where nobody has read; the next start meets it."""
    before, (copy, _) = words(path), backup_paths(path)
    with closing(SessionStore(path)) as store:
        _empty_the_index(path, "turns_by_parent")
        os.utime(copy, (1.0, 1.0))
        good = copy.read_bytes()
        store.create_session(title="four")
    assert copy.read_bytes() == good
    assert damage_mark(path).exists()
    assert words(path) == before


def _without_the_page_of(data: bytes, text: bytes) -> bytes:
    start = data.index(text) // PAGE * PAGE
    return data[:start] + b"\xa5" * PAGE + data[start + PAGE :]


def _misspelt(data: bytes, name: bytes) -> bytes:
    """Change a name in the list of tables: SQLite takes any, and fails only where it is used."""
    assert name in data[:PAGE]
    return data[:PAGE].replace(name, name[:-1] + b"x") + data[PAGE:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a page of words": partial(_without_the_page_of, text=b"reply 3"),
    "the rows of sessions": lambda data: data[: PAGE + 64] + bytes(PAGE - 64) + data[2 * PAGE :],
    "the version": lambda data: data[:60] + bytes(4) + data[64:],
    **{f"byte {at}": partial(flipped, at=at, mask=0x5A) for at in (0, 16, 18, 100, 105)},
    **{
        name.decode(): partial(_misspelt, name=name)
        for name in (b"starts_over", b"active_branch", b"leaf_id", b"content_rowid", b"unicode61")
    },
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_is_damaged_costs_nothing_with_a_backup(path: Path, damage: str) -> None:
    before = words(path)
    assert backup_paths(path)[0].exists()
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert _words_after_trouble(path) == before
    with closing(SessionStore(path)) as store:
        assert len(store.search("reply")) > 0


@pytest.mark.parametrize("place", [47, 60, 62, 63, 100, 104, 108, 677, 715])
def test_a_damaged_list_of_tables_costs_nothing_even_without_a_backup(path: Path, place: int) -> None:
    """The rows are all there; only where they begin is lost."""
    before = words(path)
    flip(path, place, 0x01 if place == 63 else 0x21)
    for copy in backup_paths(path):
        copy.unlink(missing_ok=True)
    assert _words_after_trouble(path) == before


def test_another_programs_database_is_left_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE sessions (cookie TEXT)")
    with pytest.raises(StorageError, match="already exists"):
        SessionStore(path)
    assert not list(tmp_path.glob("*damaged*"))


def test_a_refusal_that_is_no_damage_replaces_nothing(path: Path) -> None:
    with closing(SessionStore(path)) as store, pytest.raises(StorageError, match="FOREIGN KEY"):
        store.create_branch(SessionId("gone2345"), leaf_id=None)
    assert not damage_mark(path).exists()


def test_a_session_that_was_removed_does_not_live_on_in_a_copy(path: Path) -> None:
    assert backup_paths(path)[0].exists()
    with closing(SessionStore(path)) as store:
        store.delete_session(store.find("two").id)
        assert not any(copy.exists() for copy in backup_paths(path))
    _damage_the_page_of(path, b"reply 3")
    assert not any("two" in text for text in _words_after_trouble(path))


def test_nothing_is_replaced_while_another_process_writes(path: Path) -> None:
    with closing(SessionStore(path)) as other:
        exchange(other, other.branch(other.find("one").id, MAIN), "hello", "hi")
        damage_mark(path).touch()
        with pytest.raises(StorageError, match="another kvchat"):
            SessionStore(path)
    assert {"hello", "hi"} <= words(path)
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


def test_processes_that_start_at_once_salvage_it_once(path: Path) -> None:
    before = words(path)
    _damage_the_page_of(path, b"reply 3")
    damage_mark(path).touch()
    script = "import sys; from pathlib import Path; from kvchat.session.store import SessionStore; "
    script += "print(len(SessionStore(Path(sys.argv[1])).list_sessions()))"
    command = [sys.executable, "-c", script, str(path)]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate(timeout=PATIENCE_S)[0] for process in processes] == [b"3\n"] * 3
    assert [one.name for one in path.parent.glob("sessions.db.damaged*")] == ["sessions.db.damaged-1"]
    assert words(path) == before


def test_a_salvage_that_is_cut_off_anywhere_is_ended_by_the_next_start(path: Path) -> None:
    """Killed before each change of a name in turn, with the newest words in the log alone and no copy.

    What was deleted before makes the new file shorter: pages of the old log mean others in it.
    """
    store = SessionStore(path)
    store.delete_session(store.find("two").id)
    with store._database.read() as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    session = store.find("three")
    exchange(store, store.branch(session.id, MAIN), "Is it in the log?", "It is.")
    whole = {name: _beside(path, name).read_bytes() for name in ("", "-wal")}
    store.close()
    before = words(path)
    script = """
import os, sys
from pathlib import Path
from kvchat.session.store import SessionStore
left = int(sys.argv[2])
def watch(event, arguments):
    global left
    if event in ("os.rename", "os.link", "os.remove") and "sessions.db" in str(arguments[0]):
        left -= 1
        if left < 0:
            os._exit(3)
sys.addaudithook(watch)
SessionStore(Path(sys.argv[1])).close()
"""
    for number in range(30):
        for leftover in path.parent.glob("sessions.db*"):
            leftover.unlink()
        for name, data in whole.items():
            _beside(path, name).write_bytes(data)
        damage_mark(path).touch()
        command = [sys.executable, "-c", script, str(path), str(number)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=PATIENCE_S, check=False)
        assert words(path) == before
        if ended.returncode == 0:
            break
        assert ended.returncode == 3, ended.stderr
    assert number > 3


def test_the_old_log_is_gone_before_the_new_file_has_the_name_and_the_mark_goes_last(path: Path) -> None:
    """A log beside a file that it was not written for would be replayed into it. While the mark is there, the
    next start salvages once more; so this order alone keeps a cut-off salvage from ever depending on it.
    """
    store = SessionStore(path)
    exchange(store, store.branch(store.find("one").id, MAIN), "Is it in the log?", "It is.")
    log = _beside(path, "-wal").read_bytes()
    store.close()
    _beside(path, "-wal").write_bytes(log)
    damage_mark(path).touch()
    script = """
import sys
from pathlib import Path
from kvchat.session.store import SessionStore
def watch(event, arguments):
    if event in ("os.rename", "os.remove"):
        print(event, Path(arguments[0]).name, flush=True)
sys.addaudithook(watch)
SessionStore(Path(sys.argv[1])).close()
"""
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    said = done.stdout.splitlines()
    places = [
        said.index(f"{event} {path.name}{suffix}")
        for event, suffix in (("os.remove", "-wal"), ("os.rename", ".new"), ("os.remove", ".damaged"))
    ]
    assert places == sorted(places)


def test_a_file_that_is_cut_under_an_open_store_is_told_and_comes_back(path: Path) -> None:
    """A read that ends early, as from a bad sector: an error with advice, never words that were not said."""
    before = words(path)
    with closing(SessionStore(path)) as store:
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(StorageError, match=r"start kvchat again|check the disk"):
            turns(store)
    assert _words_after_trouble(path) == before


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


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
        after_trouble(lambda: _go_on(path))
        left = _words_after_trouble(path)
        assert left <= before | {"Is it well?", "It is.", ""}  # an answer that was cut off there
        backup_paths(path)[0].touch()


def _go_on(path: Path) -> None:
    with closing(SessionStore(path)) as store:
        session = store.create_session()
        exchange(store, store.branch(session.id, MAIN), "Is it well?", "It is.")
        assert [turn.text for turn in store.all_turns(session.id)] == ["Is it well?", "It is."]


def _use_all(path: Path) -> None:
    with closing(SessionStore(path)) as store:
        for one in store.list_sessions():
            branch = store.branch(one.session.id, MAIN)
            assert len(store.turns_to(branch.leaf_id)) == 16
            exchange(store, branch, "More?", "Yes.")
            assert len(store.all_turns(one.session.id)) == 18


def _empty_the_index(path: Path, name: str) -> None:
    """Make the root of an index a leaf without an entry."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (page,) = connection.execute(query, (name,)).fetchone()
    with open(path, "r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(bytes([10, 0, 0, 0, 0, 0x10, 0, 0]))


def _damage_the_page_of(path: Path, text: bytes) -> None:
    path.write_bytes(_without_the_page_of(path.read_bytes(), text))


def _words_after_trouble(path: Path) -> set[str]:
    try:
        return after_trouble(lambda: words(path))
    finally:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def test_a_damaged_file_is_kept_for_its_owner_alone_where_there_are_no_second_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    path = tmp_path / "sessions.db"
    path.touch(0o600)
    path.write_bytes(b"damaged")
    before = os.umask(0)
    try:
        aside = _set_aside(path)
    finally:
        os.umask(before)
    assert aside.read_bytes() == b"damaged"
    assert aside.stat().st_mode & 0o777 == 0o600
