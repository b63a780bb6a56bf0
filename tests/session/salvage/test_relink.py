"""What a damaged database had lost of names, places and order is put back by the digests, or told."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.errors import StorageError
from kvchat.session.database.backups import backup_paths
from kvchat.session.database.silent_damage import damage_mark
from kvchat.session.store import SessionStore
from kvchat.session.tree import MAIN, Finish, Session, Turn
from tests.session.turns import exchange, open_answer, question

pytestmark = [pytest.mark.pure, pytest.mark.long]

TEXTS = ["one", "first", "two", "second"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A session of two exchanges, a branch behind the first, and an answer that was cut off."""
    path = tmp_path / "sessions.db"
    with closing(SessionStore(path)) as store:
        session = store.create_session(system="Be kind.", model="starter")
        begun = exchange(store, store.branch(session.id, MAIN), "one", "first")
        exchange(store, begun, "two", "second")
        fork = store.create_branch(session.id, leaf_id=begun.leaf_id, name="by boat")
        asked = question(session.id, "three", parent=begun.leaf_id)
        answer = open_answer(asked)
        store.add_turns(fork, (asked, answer))
        for number in range(3):
            store.append_to_answer(answer.id, [number], f"piece {number} ")
    return path


def damage(path: Path, statement: str, *, keeps_copies: bool = False) -> None:
    """Change rows behind the store's back, as a disk may; without a copy unless it is to be kept."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    damage_mark(path).touch()
    for copy in () if keeps_copies else backup_paths(path):
        copy.unlink(missing_ok=True)


def only(store: SessionStore) -> Session:
    (one,) = store.list_sessions()
    return one.session


def turns(store: SessionStore, branch: str = "main") -> tuple[Turn, ...]:
    return store.turns_to(store.branch(only(store).id, branch).leaf_id)


def test_a_title_that_its_first_question_gives_is_put_back(path: Path) -> None:
    damage(path, "UPDATE sessions SET title = 'oNe'")
    with closing(SessionStore(path)) as store:
        assert (only(store).title, only(store).lost) == ("one", frozenset())


PUT_BACK = {
    "a parent": "turns SET parent_id = 'nobody' WHERE text = 'two'",
    "no parent": "turns SET parent_id = NULL WHERE text = 'two'",
    "another parent": "turns SET parent_id = (SELECT id FROM turns WHERE num = 1) WHERE text = 'two'",
    "the id of a turn": "turns SET id = 'stranger2345' WHERE text = 'first'",
    "the order of turns": "turns SET num = -5 WHERE text = 'second'",
    "the name of a branch": "branches SET name = 'majn' WHERE name = 'main'",
    "the end of a branch": "branches SET leaf_id = 'nobody' WHERE name = 'main'",
    "the session of a branch": "branches SET session_id = 'stranger' WHERE name = 'main'",
    "the date of a branch": "branches SET updated_at = -1e300 WHERE name = 'main'",
    "a piece of an answer": "pieces SET turn_num = 1 WHERE place = 1",
}


@pytest.mark.parametrize("change", PUT_BACK)
def test_what_the_digests_know_of_names_places_and_order_is_put_back(path: Path, change: str) -> None:
    damage(path, f"UPDATE {PUT_BACK[change]}")
    with closing(SessionStore(path)) as store:
        assert {branch.name for branch in store.branches(only(store).id)} == {"main", "by boat"}
        assert [(turn.text, turn.damaged) for turn in turns(store)] == [(text, False) for text in TEXTS]
        answer = turns(store, "by boat")[-1]
        assert (answer.text, answer.token_ids) == ("piece 0 piece 1 piece 2 ", (0, 1, 2))
        assert (answer.finish, answer.damaged) == (Finish.INTERRUPTED, False)
        seen: set[str | None] = {None}
        for turn in store.all_turns(only(store).id):
            assert turn.parent_id in seen
            seen.add(turn.id)
        assert len(store.search("second")) == 1


@pytest.mark.parametrize("column", ["title", "system"])
def test_a_column_that_nothing_stands_for_is_empty_and_said_to_be_lost(path: Path, column: str) -> None:
    with closing(SessionStore(path)) as store:
        store.rename(only(store).id, "a name of its own")
    damage(path, f"UPDATE sessions SET {column} = 'f0rged'")
    with closing(SessionStore(path)) as store:
        session = only(store)
        assert session.lost == {column}
        assert {"title": session.title, "system": session.system}[column] in ("", f"recovered {session.id}")
        store.rename(session.id, "another")
        assert only(store).lost == {column} - {"title"}
        assert [turn.text for turn in turns(store)] == TEXTS


def test_damage_that_no_salvage_has_seen_is_told_before_anything_is_shown(path: Path) -> None:
    damage(path, "UPDATE sessions SET system = 'Be cruel.'")
    damage_mark(path).unlink()
    with closing(SessionStore(path)) as store, pytest.raises(StorageError, match="start kvchat again"):
        store.list_sessions()


def test_a_change_beside_damage_does_not_vouch_for_it(path: Path) -> None:
    with closing(SessionStore(path)) as store:
        branch = store.branch(only(store).id, MAIN)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE sessions SET system = 'Be cruel.'")
        store.set_leaf(branch, branch.leaf_id)
        with pytest.raises(StorageError, match="start kvchat again"):
            store.list_sessions()


def test_a_turn_that_is_gone_is_marked_in_its_place(path: Path) -> None:
    damage(path, "DELETE FROM turns WHERE text = 'first'")
    with closing(SessionStore(path)) as store:
        found = turns(store)
        assert [turn.text for turn in found] == ["one", "", "two", "second"]
        assert [turn.damaged for turn in found] == [False, True, False, False]
        assert found[1].role == "assistant"
        assert [turn.text for turn in turns(store, "by boat")][:3] == ["one", "", "three"]


def test_words_of_another_branch_never_come_to_stand_before_a_turn(path: Path) -> None:
    """Behind which answer the lost question stood cannot be told: one has a branch's end, one has a child."""
    damage(path, "DELETE FROM turns WHERE text = 'three'")
    with closing(SessionStore(path)) as store:
        assert [turn.text for turn in turns(store, "by boat")] == ["", "piece 0 piece 1 piece 2 "]
        assert [turn.text for turn in turns(store)] == TEXTS


def test_a_session_whose_row_is_gone_keeps_its_words(path: Path) -> None:
    damage(path, "DELETE FROM sessions")
    with closing(SessionStore(path)) as store:
        assert only(store).lost == {"title", "system", "model"}
        assert [turn.text for turn in turns(store)] == TEXTS
        assert len(turns(store, "by boat")) == 4


def test_a_piece_that_is_gone_is_told(path: Path) -> None:
    damage(path, "DELETE FROM pieces WHERE place = 1")
    with closing(SessionStore(path)) as store:
        assert turns(store, "by boat")[-1].damaged


def test_an_older_copy_of_a_growing_answer_never_takes_the_place_of_its_end(path: Path) -> None:
    """The copy is of the moment when it had begun; since then it has ended, and its text was damaged."""
    with closing(SessionStore(path)) as store:
        store.settle(only(store).id)
    assert backup_paths(path)[0].exists()
    damage(path, "UPDATE turns SET text = 'f0rged' WHERE text LIKE 'piece%'", keeps_copies=True)
    with closing(SessionStore(path)) as store:
        answer = turns(store, "by boat")[-1]
        assert answer.token_ids == (0, 1, 2)
        assert answer.broken == {"text"}
