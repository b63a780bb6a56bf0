import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.session import render
from kvchat.session.store import SessionStore
from kvchat.session.tree import MAIN, Finish
from tests.session.turns import exchange

pytestmark = pytest.mark.pure

HOSTILE = "a\x1b[31mred\x1b]0;title\x07\x9b2J\r\b\u202eevil\ttab\nline"


@pytest.fixture
def stored(tmp_path: Path):
    store = SessionStore(tmp_path / "sessions.db")
    session = store.create_session(title="demo", system="Be kind.", model="tiny")
    branch = exchange(store, store.branch(session.id, MAIN), "What is it?", HOSTILE)
    yield session, store.branches(session.id), store.turns_to(branch.leaf_id)
    store.close()


def test_stored_text_cannot_steer_the_terminal(stored) -> None:
    session, branches, turns = stored
    for text in (render.markdown(session, turns), render.as_json(session, branches, turns)):
        assert not any(ord(one) < 32 and one not in "\t\n" for one in text)
        assert not any(one in text for one in "\x7f\x9b\u202e")


def test_json_holds_exactly_what_is_stored(stored) -> None:
    session, branches, turns = stored
    data = json.loads(render.as_json(session, branches, turns))
    assert data["id"] == session.id
    assert data["branches"][0]["name"] == "main"
    assert data["turns"][1]["text"] == HOSTILE
    assert data["turns"][1]["token_ids"] == [7, 8, 9]
    assert data["turns"][1]["usage"]["cached_tokens"] == 0


def test_markdown_has_every_message_and_says_how_an_answer_ended(stored) -> None:
    session, _, (asked, answer) = stored
    cut = replace(answer, text="Well", reasoning="hm\nhm", finish=Finish.INTERRUPTED, damaged=True)
    text = render.markdown(session, (asked, cut))
    assert text.startswith("# demo\n\n## System\n\nBe kind.\n\n## You")
    assert "What is it?" in text
    assert "> hm\n> hm\n\nWell\n\n*(interrupted)*\n\n*(damaged" in text
