from dataclasses import replace

import pytest

from kvchat.engine.api.ids import chain_keys, root_key
from kvchat.session.store import Outcome, SessionStore
from kvchat.session.tree import MAIN, Finish, path_token_ids
from tests.session.turns import FINGERPRINT, begin_answer, exchange, open_answer, question, references

pytestmark = [pytest.mark.pure, pytest.mark.long]

ROOT = root_key(bytes.fromhex(FINGERPRINT))
BLOCK = 4


def keys_of(store: SessionStore, leaf_id) -> list[bytes]:
    return chain_keys(ROOT, path_token_ids(store.turns_to(leaf_id)) or (), BLOCK)


def test_every_full_block_of_every_branch_is_referenced(store: SessionStore) -> None:
    session = store.create_session()
    trunk = exchange(store, store.branch(session.id, MAIN), "one", "first", range(10, 21))
    left = exchange(store, trunk, "two", "second", range(30, 40))
    right = store.create_branch(session.id, leaf_id=trunk.leaf_id)
    right = exchange(store, right, "three", "third", range(50, 70))
    expected = set(keys_of(store, left.leaf_id)) | set(keys_of(store, right.leaf_id))
    assert len(expected) == 6 + 9 - 4
    assert references(store, BLOCK).keys == expected


def test_a_tail_is_referenced_while_its_ids_lie_on_a_path(store: SessionStore) -> None:
    session = store.create_session()
    branch = exchange(store, store.branch(session.id, MAIN), "one", "first", [7, 8, 9])  # 1 2 3 7 | 8 9
    keys = keys_of(store, branch.leaf_id)
    found = references(store, BLOCK)
    assert found.covers_tail(keys[0], [8])
    assert found.covers_tail(keys[0], [8, 9])
    assert found.covers_tail(ROOT, [1, 2, 3])
    assert not found.covers_tail(keys[0], [9])
    assert not found.covers_tail(keys[0], [8, 9, 1])
    assert not found.covers_tail(ROOT, [1, 3])


def test_what_is_deleted_is_referenced_no_more(store: SessionStore) -> None:
    session = store.create_session()
    exchange(store, store.branch(session.id, MAIN), "one", "first", range(20))
    store.delete_session(session.id)
    found = references(store, BLOCK)
    assert found.keys == set()
    assert not found.covers_tail(ROOT, [1, 2])


def test_an_answer_in_progress_is_referenced_already(store: SessionStore) -> None:
    _, answer = begin_answer(store)
    store.append_to_answer(answer.id, range(10), "x")
    assert len(references(store, BLOCK).keys) == 3


def test_a_turn_that_starts_over_begins_a_chain_of_its_own(store: SessionStore) -> None:
    session = store.create_session()
    branch = exchange(store, store.branch(session.id, MAIN), "one", "first", range(20))
    asked = replace(question(session.id, "two", range(40, 52), branch.leaf_id), starts_over=True)
    answer = open_answer(asked)
    branch = store.add_turns(branch, (asked, answer))
    store.finish_answer(answer.id, Outcome(finish=Finish.COMPLETE))
    assert set(chain_keys(ROOT, range(40, 52), BLOCK)) <= references(store, BLOCK).keys


def test_ten_thousand_turns_are_walked_once_each(store: SessionStore) -> None:
    session = store.create_session()
    branch = store.branch(session.id, MAIN)
    turns, parent = [], branch.leaf_id
    for at in range(10_000):
        turns.append(question(session.id, "hello", [at] * 6, parent))
        parent = turns[-1].id
    answer = open_answer(turns[-1])
    branch = store.add_turns(branch, [*turns, answer])
    for leaf in turns[::100]:
        store.create_branch(session.id, leaf_id=leaf.id, name=f"fork {leaf.id}")
    found = references(store, BLOCK)
    assert len(found.keys) == 15_000
    assert found.keys == set(keys_of(store, branch.leaf_id))
