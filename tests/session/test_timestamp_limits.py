"""No moment from elsewhere, and no clock that was set wrong, dates what is said here."""

import json
from contextlib import closing
from pathlib import Path
from time import time

import pytest

from kvchat.session.bundle.foreign import read_transcripts
from kvchat.session.store import SessionStore
from kvchat.session.template import prompts
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.timestamp_limits import held_back
from tests.session.bundle.test_foreign import chatgpt

pytestmark = pytest.mark.pure


def test_an_import_from_the_end_of_time_dates_no_conversation_of_ours(
    tmp_path: Path, template: ChatTemplate
) -> None:
    """Neither the imported one nor those begun after it, and both can be asked."""
    export = chatgpt("q", q=(None, "user", "Hi."))
    export["create_time"] = export["mapping"]["q"]["message"]["create_time"] = 1e300
    path = tmp_path / "c.json"
    path.write_text(json.dumps([export]))
    (transcript,), _ = read_transcripts(path)
    with closing(SessionStore(tmp_path / "sessions.db")) as store:
        imported = store.adopt(*transcript)
        ours = store.create_session(title="ours")
        assert [one.session.title for one in store.list_sessions()] == ["ours", "Trip"]
        for session in (imported, ours):
            assert max(session.created_at, session.updated_at) <= time() + 1
            assert prompts.question(template, session, (), "Well?").token_ids
        assert all(turn.created_at <= time() for turn in store.all_turns(imported.id))


def test_what_is_ahead_of_the_clock_comes_back_in_its_order() -> None:
    assert list(held_back([5.0, 70.0, 60.0, 60.0], 50.0).values()) == [50.0, 49.999, 5.0]
    assert held_back([3.0, 3.0005, 50.0], 50.0) == {3.0: 3.0, 3.0005: 3.0005, 50.0: 50.0}
