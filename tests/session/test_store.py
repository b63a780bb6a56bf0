import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.engine.api.events import Loaded, Timings, Usage
from kvchat.errors import SessionExists, SessionNotFound, StorageError, UsageError
from kvchat.platform.encryptor import Encryptor
from kvchat.session.database.schema import MIGRATIONS
from kvchat.session.store import Outcome, SessionStore
from kvchat.session.tree import MAIN, Finish, Stored
from tests.session.conftest import plain_and_encrypted
from tests.session.turns import begin_answer, exchange, open_answer, question

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[2]
CHILD = """
import json, sys
from pathlib import Path
from kvchat.session.store import SessionStore

store = SessionStore(Path(sys.argv[1]))
for title in sys.argv[2:]:
    store.create_session(title=title)
print(json.dumps(sorted(one.session.title for one in store.list_sessions())))
store.close()
"""


@plain_and_encrypted
def test_what_was_stored_is_read_back_by_another_store(
    store: SessionStore, path: Path, encryptor: Encryptor | None
) -> None:
    session = store.create_session(title="trip", system="Be kind.", model="tiny")
    asked = question(session.id, "Where is Oslo?", [1, 2, 2**31])
    answer = open_answer(asked)
    store.add_turns(store.branch(session.id, MAIN), (asked, answer))
    store.append_to_answer(answer.id, [5], "In ")
    store.append_to_answer(answer.id, [6, 7], "Norway.", "easy")
    outcome = Outcome(
        finish=Finish.COMPLETE,
        usage=Usage(prompt_tokens=3, cached_tokens=1, computed_tokens=2, completion_tokens=3),
        loaded=Loaded(disk=1),
        timings=Timings(ttft_s=0.5, total_s=1.0),
        stored=Stored.BOTH,
    )
    finished = store.finish_answer(answer.id, outcome)
    other = SessionStore(path, encryptor)
    assert other.find("trip") == other.session(session.id)
    assert other.list_sessions() == store.list_sessions()
    assert other.branches(session.id) == store.branches(session.id)
    assert other.session(session.id).system == "Be kind."
    read = other.turns_to(answer.id)
    assert read == (asked, finished)
    assert (read[1].text, read[1].reasoning, read[1].token_ids) == ("In Norway.", "easy", (5, 6, 7))
    assert read[1].usage == outcome.usage
    assert read[1].loaded == outcome.loaded
    assert read[1].timings == outcome.timings
    assert (read[0].stored, read[1].stored) == (None, Stored.BOTH)
    assert not any(turn.damaged for turn in read)
    other.close()


def test_everything_is_readable_by_its_owner_alone(store: SessionStore, path: Path) -> None:
    session = store.create_session()
    asked = question(session.id)
    store.add_turns(store.branch(session.id, MAIN), (asked, open_answer(asked)))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for file in path.parent.rglob("*"):
        assert stat.S_IMODE(file.stat().st_mode) == (0o700 if file.is_dir() else 0o600), file


def test_a_taken_title_is_refused_for_a_new_session_and_a_rename(store: SessionStore) -> None:
    store.create_session(title="demo")
    with pytest.raises(SessionExists, match="demo"):
        store.create_session(title="demo")
    other = store.create_session(title="other")
    with pytest.raises(SessionExists):
        store.rename(other.id, "demo")
    assert store.rename(other.id, " my\nnotes ").title == "my notes"
    assert store.rename(other.id, "my notes").title == "my notes"


def test_session_ids_are_short_and_never_look_like_an_option(store: SessionStore) -> None:
    ids = {store.create_session().id for _ in range(50)}
    assert len(ids) == 50
    assert all(len(one) == 8 and one.isalnum() and one == one.lower() for one in ids)


def test_an_untitled_session_is_titled_by_the_first_line_said_in_it(store: SessionStore) -> None:
    session = store.create_session()
    branch = store.add_turns(
        store.branch(session.id, MAIN), (question(session.id, "\n  What is\ta cache?  \nTell me."),)
    )
    assert store.session(session.id).title == "What is a cache?"
    store.add_turns(branch, (question(session.id, "x" * 500, parent=branch.leaf_id),))
    assert store.session(session.id).title == "What is a cache?"


def test_a_long_first_line_is_cut(store: SessionStore) -> None:
    session = store.create_session()
    store.add_turns(store.branch(session.id, MAIN), (question(session.id, "word " * 100),))
    title = store.session(session.id).title
    assert len(title) <= 60
    assert title.endswith("…")


def test_two_writers_on_one_branch_make_two_branches(store: SessionStore, path: Path) -> None:
    session = store.create_session()
    other = SessionStore(path)
    seen = store.branch(session.id, MAIN)
    first = store.add_turns(seen, (question(session.id, "one"),))
    second = other.add_turns(seen, (question(session.id, "two"),))
    third = other.set_leaf(seen, None)
    assert (first.name, second.name, third.name) == ("main", "main-2", "main-3")
    assert [turn.text for turn in store.turns_to(second.leaf_id)] == ["two"]
    assert [turn.text for turn in store.turns_to(store.branch(session.id, MAIN).leaf_id)] == ["one"]
    other.close()


def test_threads_that_write_one_branch_at_once_lose_nothing(store: SessionStore) -> None:
    session = store.create_session(title="busy")
    seen = store.branch(session.id, MAIN)
    leaves = []

    def write(name: str) -> None:
        branch = seen
        for count in range(5):
            branch = exchange(store, branch, f"{name}{count}", "yes")
        leaves.append((name, branch.leaf_id))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, leaf in leaves:
        assert [turn.text for turn in store.turns_to(leaf)][::2] == [f"{name}{count}" for count in range(5)]
    assert len(store.branches(session.id)) == 4


def test_a_new_branch_is_named_beside_the_one_it_leaves(store: SessionStore) -> None:
    session = store.create_session()
    names = [store.create_branch(session.id, leaf_id=None, beside=MAIN).name for _ in range(2)]
    names.append(store.create_branch(session.id, leaf_id=None, beside="main-3").name)
    names.append(store.create_branch(session.id, leaf_id=None, name="by boat").name)
    assert names == ["main-2", "main-3", "main-4", "by boat"]
    assert store.session(session.id).active_branch == "by boat"
    with pytest.raises(UsageError, match="by boat"):
        store.create_branch(session.id, leaf_id=None, name="by boat")
    with pytest.raises(SessionNotFound, match="by boat"):
        store.branch(session.id, "by train")


@pytest.mark.parametrize("name", ["main", " main", "main\n", "\x1bmain"])
def test_a_branch_is_refused_a_name_that_is_shown_like_another(store: SessionStore, name: str) -> None:
    session = store.create_session()
    with pytest.raises(UsageError, match="choose another name"):
        store.create_branch(session.id, leaf_id=None, name=name)


@plain_and_encrypted
def test_deleting_a_session_takes_all_of_it_and_nothing_else(store: SessionStore) -> None:
    kept, gone = store.create_session(title="kept"), store.create_session(title="gone")
    exchange(store, store.branch(kept.id, MAIN), "blue fish", "yes")
    turns = [question(gone.id, "red fish")]
    for _ in range(1200):  # deeper than SQLite would cascade
        turns.append(question(gone.id, "red fish", parent=turns[-1].id))
    store.add_turns(store.branch(gone.id, MAIN), turns)
    store.delete_session(gone.id)
    assert [one.session.title for one in store.list_sessions()] == ["kept"]
    assert [hit.title for hit in store.search("fish")] == ["kept"]
    with pytest.raises(SessionNotFound):
        store.session(gone.id)
    with pytest.raises(SessionNotFound):
        store.delete_session(gone.id)


def test_turns_are_added_all_or_none(store: SessionStore) -> None:
    session = store.create_session()
    asked = question(session.id)
    with pytest.raises(StorageError):
        store.add_turns(store.branch(session.id, MAIN), (asked, asked))
    assert store.all_turns(session.id) == ()
    assert store.branch(session.id, MAIN).leaf_id is None


def test_a_changed_turn_is_marked_and_the_rest_opens(store: SessionStore, path: Path) -> None:
    session = store.create_session(title="demo")
    branch = exchange(store, store.branch(session.id, MAIN), "one", "first")
    branch = exchange(store, branch, "two", "second")
    branch = exchange(store, branch, "three", "third")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE turns SET text = 'forged' WHERE text = 'first'")
        connection.execute("UPDATE turns SET token_ids = x'010203' WHERE text = 'second'")
        connection.execute("UPDATE turns SET stats = 'broken' WHERE text = 'third'")
    connection.close()
    turns = store.turns_to(branch.leaf_id)
    assert [turn.damaged for turn in turns] == [False, True, False, True, False, False]
    assert turns[3].token_ids is None
    assert turns[5].usage == Usage()


def test_text_that_no_database_takes_is_stored_all_the_same(store: SessionStore) -> None:
    session = store.create_session()
    branch = store.add_turns(store.branch(session.id, MAIN), (question(session.id, "a\udce4\x00b"),))
    (turn,) = store.turns_to(branch.leaf_id)
    assert (turn.text, turn.damaged) == ("a?\x00b", False)


def test_a_first_question_that_is_withdrawn_takes_its_title_along(store: SessionStore) -> None:
    for title in ("", "mine"):
        session = store.create_session(title=title)
        asked = question(session.id, "What is this?")
        grown = store.add_turns(store.branch(session.id, MAIN), (asked,))
        store.withdraw(grown, None, [asked.id])
        assert store.session(session.id).title == title


def test_a_withdrawn_question_leaves_no_trace_on_the_branch(store: SessionStore) -> None:
    session = store.create_session()
    branch = exchange(store, store.branch(session.id, MAIN), "one", "first")
    grown, answer = begin_answer(store, branch, "two")
    back = store.withdraw(grown, branch.leaf_id, [answer.parent_id, answer.id])
    assert back.leaf_id == branch.leaf_id
    assert [turn.text for turn in store.all_turns(session.id)] == ["one", "first"]


def test_a_database_of_a_newer_kvchat_is_left_alone(path: Path) -> None:
    SessionStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE sessions ADD COLUMN colour TEXT")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(StorageError, match="newer kvchat"):
        SessionStore(path)


def test_a_file_that_is_no_database_is_named_with_what_to_do(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("this is not a database, but long enough to look like one " * 50)
    with pytest.raises(StorageError, match=r"sessions\.db.*move it away"):
        SessionStore(path)


def test_a_place_that_cannot_be_written_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="--data-dir"):
        SessionStore(tmp_path / "file" / "sessions.db")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_directory_is_named_with_what_to_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="--data-dir"):
        SessionStore(tmp_path / "sessions.db")


def test_a_full_disk_says_to_free_space_and_loses_nothing(store: SessionStore) -> None:
    _, answer = begin_answer(store)
    store.append_to_answer(answer.id, [1], "kept ")
    with store._database.read() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageError, match="free some space"):
        store.append_to_answer(answer.id, [2], "x" * 100_000)
    with store._database.read() as connection:
        connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
    store.append_to_answer(answer.id, [2], "too")
    assert store.turn(answer.id).text == "kept too"


def test_a_locked_database_says_who_to_close(store: SessionStore, path: Path) -> None:
    with store._database.read() as connection:
        connection.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="another program"):
        store.create_session()
    other.execute("ROLLBACK")
    other.close()
    store.create_session()


def test_a_process_that_leaves_takes_no_log_away_from_one_that_stays(tmp_path: Path) -> None:
    """Closing a descriptor of a file takes a process's locks on it: SQLite would take it for gone."""
    path = tmp_path / "sessions.db"

    def elsewhere(*titles: str) -> list[str]:
        command = [sys.executable, "-c", CHILD, str(path), *titles]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        found: list[str] = json.loads(done.stdout)
        return found

    assert elsewhere("first") == ["first"]
    with closing(SessionStore(path)) as store:
        assert elsewhere("second") == ["first", "second"]
        assert path.with_name("sessions.db-wal").exists()
        store.create_session(title="third")
        assert elsewhere() == ["first", "second", "third"]
    assert elsewhere() == ["first", "second", "third"]


def test_a_store_in_memory_does_what_others_do_and_has_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(SessionStore(None)) as store, closing(SessionStore(None)) as other:
        session = store.create_session(title="trip")
        branch = exchange(store, store.branch(session.id, MAIN), "Where is Oslo?", "In Norway.")
        store.create_branch(session.id, leaf_id=branch.leaf_id)
        _, open_one = begin_answer(store, branch)
        store.append_to_answer(open_one.id, [5], "So")
        assert store.settle(session.id) == 0, "its writer lives"
        assert [hit.title for hit in store.search("norway")] == ["trip"]
        threads = [threading.Thread(target=store.create_session) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store.list_sessions()) == 5
        assert other.list_sessions() == ()
        store.delete_session(session.id)
    assert list(tmp_path.iterdir()) == []
