"""An answer is stored while it grows, by its writer alone, and what was stored of it stays."""

from pathlib import Path

import pytest

from kvchat.errors import SessionNotFound, UsageError
from kvchat.session.store import Outcome, SessionStore
from kvchat.session.tree import MAIN, Finish
from tests.session.conftest import plain_and_encrypted
from tests.session.turns import begin_answer

pytestmark = pytest.mark.pure


@plain_and_encrypted
def test_an_answer_in_progress_reads_as_partial_with_everything_stored(store: SessionStore) -> None:
    _, answer = begin_answer(store)
    for number in range(5):
        store.append_to_answer(answer.id, [number], f"{number} ")
    assert store.settle(answer.session_id) == 0
    read = store.turn(answer.id)
    assert (read.finish, read.text, read.token_ids) == (Finish.PARTIAL, "0 1 2 3 4 ", (0, 1, 2, 3, 4))


def test_another_store_leaves_an_answer_alone_while_its_writer_lives(store: SessionStore, path: Path) -> None:
    _, answer = begin_answer(store)
    store.append_to_answer(answer.id, [4], "Half")
    other = SessionStore(path)
    assert other.settle(answer.session_id) == 0
    assert other.turn(answer.id).finish is Finish.PARTIAL
    with pytest.raises(UsageError):
        other.reopen_answer(other.branch(answer.session_id, MAIN), answer.id)
    store.close()
    assert other.turn(answer.id).finish is Finish.INTERRUPTED
    assert other.settle(answer.session_id) == 1
    assert other.settle(answer.session_id) == 0
    settled = other.turn(answer.id)
    assert (settled.finish, settled.text, settled.damaged) == (Finish.INTERRUPTED, "Half", False)
    other.close()
    assert list((path.parent / "writers").iterdir()) == []


def test_growing_an_answer_costs_the_piece_and_not_the_answer(store: SessionStore) -> None:
    _, answer = begin_answer(store)
    size = []
    for at in range(3000):
        store.append_to_answer(answer.id, [at], "word ")
        if at in (100, 200, 2900, 2999):
            with store._database.read() as connection:
                size.append(connection.total_changes)
    # One row per piece, however long the answer is by now.
    assert size[1] - size[0] == 100
    assert size[3] - size[2] == 99
    assert len(store.finish_answer(answer.id, Outcome(finish=Finish.COMPLETE)).token_ids or ()) == 3000


def test_an_interrupted_answer_can_grow_again(store: SessionStore) -> None:
    branch, answer = begin_answer(store)
    store.append_to_answer(answer.id, [4], "Half")
    store.finish_answer(answer.id, Outcome(finish=Finish.INTERRUPTED))
    same, turn = store.reopen_answer(branch, answer.id)
    assert (same, turn.id) == (branch, answer.id)
    store.append_to_answer(answer.id, [5], " more")
    done = store.finish_answer(answer.id, Outcome(finish=Finish.COMPLETE))
    assert (done.text, done.token_ids, done.damaged) == ("Half more", (4, 5), False)
    with pytest.raises(UsageError, match="cut short"):
        store.reopen_answer(branch, answer.id)


def test_an_answer_that_another_branch_rests_on_grows_as_a_copy(store: SessionStore) -> None:
    branch, answer = begin_answer(store)
    store.append_to_answer(answer.id, [4], "Half")
    store.finish_answer(answer.id, Outcome(finish=Finish.INTERRUPTED))
    fork = store.create_branch(answer.session_id, leaf_id=answer.id)
    moved, copy = store.reopen_answer(branch, answer.id)
    assert copy.id != answer.id
    store.append_to_answer(copy.id, [5], " more")
    store.finish_answer(copy.id, Outcome(finish=Finish.COMPLETE))
    assert store.turns_to(moved.leaf_id)[-1].text == "Half more"
    assert store.turns_to(fork.leaf_id)[-1].text == "Half"
    assert [turn.parent_id for turn in store.all_turns(answer.session_id)].count(answer.parent_id) == 2


@plain_and_encrypted
def test_an_answer_whose_session_is_deleted_meanwhile_says_so(store: SessionStore) -> None:
    _, answer = begin_answer(store)
    store.delete_session(answer.session_id)
    with pytest.raises(SessionNotFound, match="deleted"):
        store.append_to_answer(answer.id, [1], "a")


def test_a_piece_that_no_database_takes_is_stored_all_the_same(store: SessionStore) -> None:
    _, answer = begin_answer(store)
    store.append_to_answer(answer.id, [5], "a\ud83d", "\ude00b")
    ended = store.finish_answer(answer.id, Outcome(finish=Finish.COMPLETE))
    assert (ended.text, ended.reasoning, ended.damaged) == ("a?", "?b", False)
