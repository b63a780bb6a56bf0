"""An older database is brought forward, and keeps every word."""

import pytest

from kvchat.session.store import SessionStore, new_session_id
from kvchat.session.tree import MAIN, Branch, Session, Verdict, Verification
from tests.session.turns import exchange, question

pytestmark = pytest.mark.pure


def test_a_session_remembers_whose_blocks_it_uses_and_what_was_found_of_them(store: SessionStore) -> None:
    session = store.adopt(adoptable(namespace="bundle:7"), [empty_main(None)], [])
    assert store.session(session.id).namespace == "bundle:7"
    found = Verification(verdict=Verdict.SAME, at=5.0, num_blocks=3, of_blocks=3)
    store.mark_verified(session.id, found, "")
    assert store.session(session.id).namespace == ""
    assert store.session(session.id).verification == found


def test_an_adopted_session_comes_whole_and_a_taken_title_gets_a_number(store: SessionStore) -> None:
    native = store.create_session(title="demo")
    exchange(store, store.branch(native.id, MAIN), "Hello?", "Hi.")
    asked = question(SESSION, "from elsewhere")
    session = store.adopt(adoptable(), [empty_main(asked.id)], [asked])
    again = store.adopt(adoptable(new_session_id()), [], [])
    assert [session.title, again.title] == ["demo (2)", "demo (3)"]
    assert [turn.text for turn in store.turns_to(store.branch(SESSION, MAIN).leaf_id)] == ["from elsewhere"]
    assert {hit.session_id for hit in store.search("elsewhere")} == {SESSION}


def test_a_session_that_cannot_be_adopted_whole_leaves_nothing(store: SessionStore) -> None:
    asked = question(SESSION)
    with pytest.raises(Exception, match="UNIQUE"):
        store.adopt(adoptable(), [empty_main(asked.id)], [asked, asked])
    assert store.list_sessions() == ()


SESSION = new_session_id()


def adoptable(session_id=SESSION, namespace: str = "") -> Session:
    return Session(
        id=session_id,
        title="demo",
        system="",
        model="starter",
        created_at=1.0,
        updated_at=2.0,
        namespace=namespace,
    )


def empty_main(leaf_id) -> Branch:
    return Branch(session_id=SESSION, name=MAIN, leaf_id=leaf_id, updated_at=2.0)
