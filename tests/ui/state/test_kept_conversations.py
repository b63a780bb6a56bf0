"""Which conversations stay open."""

import pytest

from kvchat.chat.conversation import Conversation
from kvchat.session.tree import MAIN, SessionId
from kvchat.ui.state.kept_conversations import MAX_KEPT, KeptConversations
from tests.ui.scripted import ScriptedChat
from tests.ui.scripted_engine import HeldTokens, ScriptedEngine, scripted_snapshot

pytestmark = pytest.mark.pure


@pytest.fixture
def chat() -> ScriptedChat:
    return ScriptedChat(ScriptedEngine())


def stored(chat: ScriptedChat, title: str) -> Conversation:
    return chat.add_session(title, [("hello", "hi")])


def test_one_that_is_opened_again_is_the_one_that_was_kept_unless_it_has_moved(chat: ScriptedChat) -> None:
    stored(chat, "a")
    kept, first = KeptConversations(), chat.open("a")
    assert kept.keep(first) == []
    assert kept.take(chat.open("a")) == (first, [])
    assert list(kept) == []
    kept.keep(first)
    chat.store.paths[SessionId("s1"), MAIN] = first.turns[:-1]
    fresh = chat.open("a")
    assert kept.take(fresh) == (fresh, [first])


def test_the_oldest_is_closed_when_there_are_too_many(chat: ScriptedChat) -> None:
    kept = KeptConversations()
    opened = [stored(chat, f"{number}") for number in range(MAX_KEPT + 1)]
    closed = [closing for conversation in opened for closing in kept.keep(conversation)]
    assert closed == opened[:1]


def test_a_deleted_session_is_not_kept(chat: ScriptedChat) -> None:
    kept, first, second = KeptConversations(), stored(chat, "a"), stored(chat, "b")
    kept.keep(first)
    kept.keep(second)
    assert kept.drop_session(first.session.id) == [first]
    assert list(kept) == [second]


def test_nothing_is_kept_at_the_price_of_a_whole_context(chat: ScriptedChat) -> None:
    kept, first = KeptConversations(), stored(chat, "a")
    kept.keep(first)
    roomy = scripted_snapshot([HeldTokens(owner="s", num_tokens=1000)], kept_tokens=7000)
    assert kept.drop_for_room(roomy) == []
    tight = scripted_snapshot([HeldTokens(owner="s", num_tokens=10_000)])
    assert kept.drop_for_room(tight) == [first]
    assert kept.drop_for_room(tight) == []
