"""A turn whose row was damaged is found, rebuilt from its other half, and marked; the rest opens."""

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.chat.service import Chat
from kvchat.session import digest_repair
from kvchat.session.store import Outcome, SessionStore
from kvchat.session.template import prompts
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import MAIN, Finish, MessagePart, Turn
from tests.scripted_engine import ScriptedEngine
from tests.session.turns import begin_answer
from tests.tiny_models import CHATML, LLAMA3, STARTER, write_model

pytestmark = [pytest.mark.pure, pytest.mark.long]

OLD_FILE = Path(__file__).parent / "old" / "first_version.db"
QUESTIONS = ("What is a KV cache?", "Grüße aus Köln!")
ANSWERS = ("It stores keys and values.", "Hello! My name is Ana.")


@pytest.fixture(params=[STARTER, CHATML, LLAMA3], ids=["starter", "chatml", "llama3"])
def template(request: pytest.FixtureRequest, tmp_path: Path) -> ChatTemplate:
    write_model(tmp_path / "model", request.param)
    return ChatTemplate.from_dir(tmp_path / "model")


def converse(store: SessionStore, template: ChatTemplate) -> tuple[Turn, ...]:
    """Store a conversation as chat does, and return its turns."""
    session = store.create_session(title="demo", system="Be kind.")
    branch = store.branch(session.id, MAIN)
    path: tuple[Turn, ...] = ()
    for text, reply in zip(QUESTIONS, ANSWERS, strict=True):
        asked = prompts.question(template, session, path, text)
        answer = prompts.empty_answer(template, asked)
        branch = store.add_turns(branch, (asked, answer))
        ids = [*template.tokenizer.encode(reply), min(template.end_ids)]
        store.append_to_answer(answer.id, ids, reply)
        store.finish_answer(answer.id, Outcome(finish=Finish.COMPLETE))
        path = store.turns_to(answer.id)
    return path


def damage(store: SessionStore, turn: Turn, column: str, value: object) -> None:
    with sqlite3.connect(store.path) as connection:
        connection.execute(f"UPDATE turns SET {column} = ? WHERE id = ?", (value, turn.id))
    connection.close()


def read_and_mend(store: SessionStore, template: ChatTemplate, path: tuple[Turn, ...]) -> tuple[Turn, ...]:
    session = store.session(path[0].session_id)
    return digest_repair.mend(store, template, session, store.turns_to(path[-1].id))


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize(("column", "value"), [("text", "f\0rged"), ("token_ids", b"\1\0\0\0" * 3)])
def test_text_and_token_ids_repair_each_other(
    store: SessionStore, template: ChatTemplate, at: int, column: str, value: object
) -> None:
    path = converse(store, template)
    damage(store, path[at], column, value)
    broken = {"text": MessagePart.TEXT, "token_ids": MessagePart.IDS}[column]
    assert store.turn(path[at].id).broken == {broken}
    mended = read_and_mend(store, template, path)
    assert mended == tuple(replace(turn, repaired=turn.id == path[at].id) for turn in path)
    assert store.turns_to(path[-1].id) == mended


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("finish", "length"),
        ("role", "user"),
        ("starts_over", 1),
        ("exact", 0),
        ("tokenizer", "x"),
        ("role", "?"),
    ],
)
def test_a_fact_that_was_changed_is_found_and_put_right(
    store: SessionStore, template: ChatTemplate, column: str, value: object
) -> None:
    path = converse(store, template)
    damage(store, path[3], column, value)
    assert store.turn(path[3].id).broken == {MessagePart.FACTS}
    assert read_and_mend(store, template, path)[3] == replace(path[3], repaired=True)


def test_a_turn_that_lost_both_halves_is_marked_and_the_rest_opens(
    store: SessionStore, template: ChatTemplate
) -> None:
    path = converse(store, template)
    damage(store, path[1], "text", "forged")
    damage(store, path[1], "token_ids", b"\1\0\0\0")
    mended = read_and_mend(store, template, path)
    assert [turn.damaged for turn in mended] == [False, True, False, False]
    assert mended[1].broken == {MessagePart.TEXT, MessagePart.IDS}
    assert [turn.text for turn in mended[2:]] == [turn.text for turn in path[2:]]


def test_a_damaged_digest_condemns_nothing(store: SessionStore, template: ChatTemplate) -> None:
    path = converse(store, template)
    damage(store, path[1], "parts", b"\0" * 32 + _parts(store, path[1])[32:])
    assert not store.turn(path[1].id).damaged
    damage(store, path[2], "digest", b"forged")
    assert not store.turn(path[2].id).damaged


def test_a_damaged_piece_of_an_unfinished_answer_is_told_and_never_vouched_for(store: SessionStore) -> None:
    """Folding an answer whose writer died must not give damaged text a digest of its own."""
    _, turn = begin_answer(store)
    store.append_to_answer(turn.id, [3, 4], " and more")
    store.abandon_answer(turn.id)
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE pieces SET text = ' forged'")
    connection.close()
    assert store.turn(turn.id).broken == {MessagePart.TEXT}
    assert store.settle(turn.session_id) == 1
    assert store.turn(turn.id).broken >= {MessagePart.TEXT}
    assert store.turn(turn.id).has_ids


def test_opening_a_conversation_repairs_it(store: SessionStore, tmp_path: Path) -> None:
    write_model(tmp_path / "model", STARTER)
    template = ChatTemplate.from_dir(tmp_path / "model")
    path = converse(store, template)
    damage(store, path[1], "text", "forged")
    chat = Chat(store=store, template=template, engine=ScriptedEngine(lambda prompt: []), model="tiny")
    turns = chat.open("demo").turns
    assert [turn.text for turn in turns] == [turn.text for turn in path]
    assert [turn.repaired for turn in turns] == [False, True, False, False]


def test_a_real_database_of_the_first_version_keeps_every_word(tmp_path: Path) -> None:
    """The file was written by the first version: a tree, an answer whose writer died, a damaged turn."""
    shutil.copyfile(OLD_FILE, tmp_path / "sessions.db")
    store = SessionStore(tmp_path / "sessions.db")
    trip = store.find("trip")
    turns = store.turns_to(store.branch(trip.id, MAIN).leaf_id)
    assert [turn.text for turn in turns] == [
        "Where is Oslo?", "In Norway. Grüße!", "And Bergen?", "In Norway too.",
    ]  # fmt: skip
    assert [turn.token_ids for turn in turns] == [(1, 2, 3), (5, 6, 7), (1, 2, 3), (8, 9)]
    assert {branch.name for branch in store.branches(trip.id)} == {"main", "by boat"}
    assert not any(turn.damaged or turn.repaired for turn in turns)
    killed = store.find("killed")
    assert store.settle(killed.id) == 1
    (_, answer) = store.all_turns(killed.id)
    assert (answer.text, answer.token_ids, answer.finish) == ("Yes, I do", (3, 4, 5), Finish.INTERRUPTED)
    assert [turn.damaged for turn in store.all_turns(store.find("damaged").id)] == [False, True]
    damage(store, turns[1], "text", "forged")
    assert store.turn(turns[1].id).broken == {MessagePart.TEXT}
    store.close()


def _parts(store: SessionStore, turn: Turn) -> bytes:
    with sqlite3.connect(store.path) as connection:
        (parts,) = connection.execute("SELECT parts FROM turns WHERE id = ?", (turn.id,)).fetchone()
    connection.close()
    return parts
