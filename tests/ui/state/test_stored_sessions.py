"""What live branches are called, in the cache panel and wherever blocks are shown."""

from dataclasses import replace

import pytest

from kvchat.chat.conversation import Conversation
from kvchat.engine.api.ids import SequenceId
from kvchat.ui.state.kept_conversations import KeptConversations
from kvchat.ui.state.stored_sessions import StoredSessions
from tests.ui.scripted import ScriptedChat
from tests.ui.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.pure


def conversation(chat: ScriptedChat, title: str, number: int, branch: str = "main") -> Conversation:
    opened = chat.open(title, "main")
    opened.branch = replace(opened.branch, name=branch)
    opened.engine_sequence = SequenceId(number)
    return opened


def test_a_session_is_called_by_its_title_and_by_branch_only_where_several_are_live() -> None:
    chat = ScriptedChat(ScriptedEngine())
    for title in ("Oslo", "Rome"):
        chat.add_session(title, [("Hello?", "Hello!")])
    sessions, kept = StoredSessions(chat.store), KeptConversations()
    sessions.read()
    here = conversation(chat, "Oslo", 1)
    assert sessions.branch_names(here, [here, *kept]).of_branches == {}
    kept.keep(conversation(chat, "Oslo", 2, "by boat"))
    kept.keep(conversation(chat, "Rome", 3))
    assert sessions.branch_names(here, [here, *kept]).of_branches == {1: "main", 2: "by boat"}
    kept.keep(conversation(chat, "Rome", 4, "by train"))
    names = sessions.branch_names(here, [here, *kept]).of_branches
    assert {number: names[SequenceId(number)] for number in (3, 4)} == {
        3: "Rome › main",
        4: "Rome › by train",
    }


def test_titles_are_made_when_the_store_is_read_and_not_whenever_they_are_asked_for() -> None:
    chat = ScriptedChat(ScriptedEngine())
    chat.add_session("Oslo", [("Hello?", "Hello!")])
    sessions = StoredSessions(chat.store)
    sessions.read()
    before = sessions.branch_names(None, ()).of_sessions
    assert sessions.branch_names(None, ()).of_sessions is before
    session = chat.open("Oslo", "main").session
    chat.store.rename(session.id, "Bergen")
    sessions.read()
    assert sessions.titles[session.id] == "Bergen"
    assert sessions.branch_names(None, ()).of_sessions == {session.id: "Bergen"}
