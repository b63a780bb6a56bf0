"""Sessions, branches and exports are the same when a server answers; what it does not say is unknown."""

import json
from collections.abc import Callable, Iterator
from threading import Thread

import pytest

from kvchat.chat.conversation import Conversation
from kvchat.chat.events import ChatEvent, TurnFinished, TurnStarted
from kvchat.errors import ConfigError, InvalidRequest, KvchatError, ModelNotFound, RemoteError, UsageError
from kvchat.remote.chat_service import RemoteChat
from kvchat.remote.endpoint import RemoteServer
from kvchat.session.store import SessionStore
from kvchat.session.template.text_stream import Piece
from kvchat.session.tree import Finish, Turn
from kvchat.text.answer_footer import footer_parts
from kvchat.text.revision import edit_words
from tests.patience import PATIENCE_S
from tests.remote.conftest import HEAD, RawServer
from tests.serving.conftest import REPLY, Served

pytestmark = [pytest.mark.pure, pytest.mark.long]

Raw = Callable[..., RawServer]


def sse(*events: object) -> bytes:
    return HEAD + b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def piece(text: str) -> object:
    return {"choices": [{"delta": {"content": text}}]}


END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


def answer_of(events: Iterator[ChatEvent]) -> Turn:
    """Take all events and return the answer as it was stored."""
    *before, last = list(events)
    assert isinstance(before[0], TurnStarted)
    assert isinstance(last, TurnFinished)
    shown = "".join(event.text for event in before if isinstance(event, Piece) and not event.reasoning)
    assert shown == last.answer.text
    return last.answer


def talk(chat: RemoteChat, *questions: str) -> Conversation:
    conversation = chat.create(system="Be brief.")
    for question in questions:
        answer_of(chat.send(conversation, question))
    return conversation


def over(store: SessionStore, server: RawServer) -> RemoteChat:
    return RemoteChat(store=store, endpoint=RemoteServer(server.url), model="any")


def test_an_answer_is_stored_as_it_was_said_without_ids_and_never_exact(
    chat: RemoteChat, served: Served, store: SessionStore
) -> None:
    conversation = talk(chat, "Hello")
    question, answer = store.turns_to(conversation.branch.leaf_id)
    assert (question.text, answer.text) == ("Hello", REPLY)
    assert answer.finish is Finish.COMPLETE
    assert (question.token_ids, answer.token_ids, answer.exact) == (None, None, False)
    assert answer.backend is not None
    assert answer.backend.url == served.server.url
    assert answer.usage.prompt_tokens == len(served.engine.requests[0].token_ids)
    assert answer.usage.completion_tokens == len(served.ids_of(REPLY))
    assert answer.model == "scripted"
    assert "by 127.0.0.1" in footer_parts(answer)[-1]


def test_the_whole_conversation_is_sent_and_what_the_server_had_cached_is_shown(
    chat: RemoteChat, served: Served
) -> None:
    conversation = talk(chat, "Hello", "And now?")
    first, second = (request.token_ids for request in served.engine.requests)
    assert second[: len(first)] == first, "the system prompt and the first question stand before it"
    answer = conversation.turns[-1]
    assert answer.backend is not None
    assert answer.backend.counts_cached
    assert footer_parts(answer)[0] == f"reused {answer.usage.cached_tokens} of {answer.usage.prompt_tokens}"


def test_branches_edits_retries_and_revisions_are_those_of_any_session(chat: RemoteChat) -> None:
    conversation = talk(chat, "one", "two", "three")
    fork = chat.fork(conversation, conversation.turns[1].id)
    answer_of(chat.send(fork, "another two"))
    assert [turn.text for turn in fork.turns[::2]] == ["one", "another two"]
    answer_of(chat.retry(conversation))
    assert len(chat.store.branches(conversation.session.id)) == 3
    words = edit_words(chat.edit_cost(conversation, conversation.turns[2].id, "2"))
    assert "up to the server" in words
    assert "token" not in words
    answer_of(chat.edit(conversation, conversation.turns[2].id, "2"))
    assert [turn.text for turn in conversation.turns[::2]] == ["one", "2"]
    conversation = chat.open(conversation.session.id, "main")
    chat.revise(conversation, chat.plan_drop(conversation, conversation.turns[2].id))
    assert [turn.text for turn in conversation.turns] == ["one", REPLY, "three", REPLY]
    chat.revise(conversation, chat.plan_undo(conversation))
    assert [turn.text for turn in conversation.turns] == ["one", REPLY]
    answer_of(chat.send(conversation, "on"))


def test_what_only_an_engine_here_can_do_is_refused_and_said(chat: RemoteChat) -> None:
    conversation = talk(chat, "one")
    answer = conversation.turns[-1]
    for attempt in (
        lambda: chat.why(conversation, answer.id),
        lambda: chat.variants.compare(conversation, 2, chat.sampling),
        lambda: chat.variants.tokens,
        lambda: next(iter(chat.continue_answer(conversation))),
    ):
        with pytest.raises(UsageError, match="server"):
            attempt()
    assert chat.notices(conversation) == ()


def test_what_a_server_does_not_report_is_unknown_and_not_nothing(store: SessionStore, raw: Raw) -> None:
    silent = over(store, raw(sse(piece("Hi"), END)))
    answer = answer_of(silent.send(silent.create(), "Hello"))
    assert footer_parts(answer)[0] == "reused unknown"
    usage = {"usage": {"prompt_tokens": 9, "completion_tokens": 1}}
    counting = over(store, raw(sse(piece("Hi"), END, usage)))
    answer = answer_of(counting.send(counting.create(), "Hello"))
    assert footer_parts(answer)[0] == "reused unknown of 9"
    assert store.turn(answer.id) == answer


def test_reasoning_is_kept_apart(store: SessionStore, raw: Raw) -> None:
    thought = {"choices": [{"delta": {"reasoning_content": "Hm."}}]}
    chat = over(store, raw(sse(thought, piece("Hi"), END)))
    answer = answer_of(chat.send(chat.create(), "Hello"))
    assert (answer.text, answer.reasoning) == ("Hi", "Hm.")


@pytest.mark.parametrize(
    "data",
    [
        sse(piece("Hi")),
        sse(piece("Hi"), {"error": {"message": "out of memory"}}),
        HEAD + b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\ndata: {"cho',
        HEAD + b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\ndata: []\n\n',
        sse(piece("Hi"), 5),
        sse(piece("Hi"), None),
        sse(piece("Hi"), {"choices": 5}),
        sse(piece("Hi"), {"choices": [5]}),
        sse(piece("Hi"), {"choices": [{"delta": 5}]}),
        sse(piece("Hi"), {"usage": 5}),
        sse(piece("Hi")) + b"data: " + b"[" * 200_000 + b"\n\n",
        sse(piece("Hi")) + b'data: {"error": ' + b"[" * 200_000 + b"\n\n",
    ],
)
def test_a_server_that_breaks_off_leaves_what_it_said_and_an_error(
    store: SessionStore, raw: Raw, data: bytes
) -> None:
    chat = over(store, raw(data))
    conversation = chat.create()
    last = list(chat.send(conversation, "Hello"))[-1]
    assert isinstance(last, TurnFinished)
    assert last.error
    stored = store.turns_to(conversation.branch.leaf_id)[-1]
    assert (stored.text, stored.finish) == ("Hi", Finish.ERROR)
    assert not conversation.is_busy


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"HTTP/1.1 500 Broken\r\nContent-Length: 4\r\n\r\noops", RemoteError),
        (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n", RemoteError),
        (b"SSH-2.0-OpenSSH_9.6\r\n", RemoteError),
        (b"", RemoteError),
        (b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\n{}", ConfigError),
        (b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\n[]", ModelNotFound),
        (b'HTTP/1.1 400 No\r\nContent-Length: 25\r\n\r\n{"error": {"message": 12}}', InvalidRequest),
    ],
)
def test_a_server_that_refuses_is_told_by_kind(
    store: SessionStore, raw: Raw, data: bytes, kind: type[KvchatError]
) -> None:
    chat = over(store, raw(data))
    conversation = chat.create()
    with pytest.raises(kind):
        list(chat.send(conversation, "Hello"))
    is_taken_back = kind in (InvalidRequest, ModelNotFound)
    assert len(store.turns_to(conversation.branch.leaf_id)) == (0 if is_taken_back else 2)
    assert not conversation.is_busy


def test_nobody_there_is_told_with_the_address(store: SessionStore, raw: Raw) -> None:
    server = raw(b"")
    server.close()
    with pytest.raises(RemoteError, match="nobody answers"):
        RemoteServer(server.url).models()


def test_stopping_closes_the_connection_and_keeps_what_came(store: SessionStore, raw: Raw) -> None:
    server = raw(sse(piece("Hi")), hangs=True)
    chat = over(store, server)
    conversation = chat.create()
    events = chat.send(conversation, "Hello")
    assert isinstance(next(events), TurnStarted)
    assert isinstance(next(events), Piece)
    Thread(target=chat.stop, args=(conversation,)).start()
    answer = answer_of(_behind(events, conversation))
    assert (answer.text, answer.finish) == ("Hi", Finish.INTERRUPTED)
    assert server.gone.wait(PATIENCE_S)


@pytest.mark.parametrize("is_early", [True, False])
def test_an_answer_is_stopped_before_the_server_says_a_word(
    store: SessionStore, raw: Raw, is_early: bool
) -> None:
    """Also one that is stopped before the request is sent."""
    server = raw(b"", hangs=True)
    chat = over(store, server)
    conversation = chat.create()
    events = chat.send(conversation, "Hello")
    assert isinstance(next(events), TurnStarted)
    if is_early:
        chat.stop(conversation)
    ended: list[Turn] = []
    reader = Thread(target=lambda: ended.extend(one.answer for one in events), daemon=True)  # type: ignore[union-attr]
    reader.start()
    if not is_early:
        assert server.asked.wait(PATIENCE_S)
        chat.stop(conversation)
    reader.join(PATIENCE_S)
    assert [(turn.text, turn.finish) for turn in ended] == [("", Finish.INTERRUPTED)]


def test_characters_that_were_cut_in_two_are_joined_and_halves_are_replaced(
    store: SessionStore, raw: Raw
) -> None:
    thought = {"choices": [{"delta": {"reasoning": "\ud83d"}}]}
    more = {"choices": [{"delta": {"reasoning": "\ude00"}}]}
    server = raw(
        sse(piece("a\ud83d"), thought, piece("\ude00b\ud83d"), more, piece("c\ude00"), piece("\ud83d"), END)
    )
    chat = over(store, server)
    answer = answer_of(chat.send(chat.create(), "Hello"))
    assert (answer.text, answer.reasoning) == ("a\U0001f600b\ufffdc\ufffd\ufffd", "\U0001f600")


def test_a_session_that_began_here_goes_on_by_its_text(chat: RemoteChat, served: Served) -> None:
    conversation = talk(chat, "one")
    again = chat.open(conversation.session.id)
    answer_of(chat.send(again, "two"))
    assert "one" in served.template.tokenizer.decode(served.engine.requests[-1].token_ids)


def _behind(events: Iterator[ChatEvent], conversation: Conversation) -> Iterator[ChatEvent]:
    """Yield what was taken already, and then the rest."""
    yield TurnStarted(question=None, answer=conversation.turns[-1])
    yield Piece(text="Hi")
    yield from events
