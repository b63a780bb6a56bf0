"""An older database is brought forward, and keeps every word."""

import sqlite3
from pathlib import Path

import pytest

from kvchat.session.database import rows, schema
from kvchat.session.store import SessionStore, new_session_id
from kvchat.session.tree import MAIN, Branch, Session, Verdict, Verification
from tests.session.turns import exchange, question

pytestmark = pytest.mark.pure


@pytest.fixture
def first_version(tmp_path: Path) -> Path:
    """A database as the first version wrote it, with one question."""
    path = tmp_path / "sessions.db"
    asked = question("demo2345", "Grüße!")
    with sqlite3.connect(path) as connection:
        for statement in schema.MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute("PRAGMA user_version = 1")
        connection.execute("INSERT INTO sessions VALUES ('demo2345', 'demo', '', 'starter', 1, 2, 'main', 0)")
        values = rows.values_of(asked, "")
        del values["parts"], values["repaired"]
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO turns ({names}) VALUES ({marks})", tuple(values.values()))
        connection.execute("INSERT INTO branches VALUES ('demo2345', 'main', ?, 2)", (asked.id,))
    connection.close()
    return path


def test_a_session_of_the_first_version_is_native_and_has_not_been_verified(first_version: Path) -> None:
    store = SessionStore(first_version)
    session = store.find("demo")
    (turn,) = store.turns_to(store.branch(session.id, MAIN).leaf_id)
    assert (turn.text, turn.damaged) == ("Grüße!", False)
    assert (session.namespace, session.verification) == ("", None)
    store.close()
    with sqlite3.connect(first_version) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)
    connection.close()


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
