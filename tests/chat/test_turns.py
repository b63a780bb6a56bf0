"""A turn, from the question to the end of its answer, the next one behind it, and what is loaded ahead."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvchat.chat.events import TurnFinished, TurnStarted
from kvchat.chat.service import Chat
from kvchat.engine.api.events import Event, LoadChoice, LoadEstimate, LoadPlanned, PrefillProgress
from kvchat.errors import UsageError
from kvchat.session.store import SessionStore
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.template.text_stream import Piece
from kvchat.session.tree import Finish, Stored
from tests.chat.desk import REPLY, Desk, shown
from tests.scripted_engine import ScriptedHandle
from tests.tiny_models import QWEN_THINKING, write_model

pytestmark = pytest.mark.pure


def test_a_turn_is_told_from_question_to_end(desk: Desk) -> None:
    conversation = desk.chat.create("demo", "Be kind.")
    events = list(desk.chat.send(conversation, "My name is Ana."))
    started, prefill, *_, finished = events
    assert isinstance(started, TurnStarted)
    assert started.question is not None
    assert started.question.text == "My name is Ana."
    assert isinstance(prefill, PrefillProgress)
    assert isinstance(finished, TurnFinished)
    assert (finished.error, finished.answer.finish) == (None, Finish.COMPLETE)
    assert shown(events) == finished.answer.text == REPLY
    assert (finished.answer.model, finished.answer.fingerprint) == ("tiny", "ab" * 32)
    assert finished.answer.usage.completion_tokens == len(finished.answer.token_ids or ())
    assert conversation.turns[-1] == finished.answer
    assert desk.store.turns_to(conversation.branch.leaf_id) == conversation.turns


def test_what_the_model_sees_only_ever_grows(desk: Desk) -> None:
    """Trap 29: no id that the model saw changes, whatever comes after."""
    conversation = desk.talk("One", system="Be kind.")
    first = desk.engine.requests[0].token_ids + (conversation.turns[-1].token_ids or ())
    list(desk.chat.send(conversation, "Two"))
    second = desk.engine.requests[1].token_ids
    assert second[: len(first)] == first
    assert desk.seen(conversation) == (
        f"<|system|>Be kind.<|end|><|user|>One<|end|><|assistant|>{REPLY}<|end|>"
        f"<|user|>Two<|end|><|assistant|>{REPLY}<|end|>"
    )


def test_the_next_turn_continues_the_live_branch_and_close_lets_go_of_it(desk: Desk) -> None:
    conversation = desk.talk("One")
    live = conversation.engine_sequence
    assert live is not None
    list(desk.chat.send(conversation, "Two"))
    assert desk.engine.requests[1].sequence == live
    assert [request.owner for request in desk.engine.requests] == [conversation.session.id] * 2
    desk.chat.close(conversation)
    assert desk.engine.live == {}
    assert conversation.engine_sequence is None


def test_everything_is_stored_before_it_is_shown(desk: Desk) -> None:
    conversation = desk.chat.create()
    so_far, num_deltas = "", 0
    other = SessionStore(desk.store.path)
    for event in desk.chat.send(conversation, "Hello"):
        if isinstance(event, TurnStarted):
            assert not desk.engine.requests
            assert [turn.text for turn in other.turns_to(event.answer.id)] == ["Hello", ""]
        if isinstance(event, Piece):
            so_far += event.text
            num_deltas += 1
            stored = other.turn(conversation.turns[-1].id)
            assert stored.text.startswith(so_far)
            assert desk.template.tokenizer.decode(stored.token_ids or ()).startswith(so_far)
    assert num_deltas >= 2
    other.close()


def test_conversations_that_take_turns_never_mix(desk: Desk) -> None:
    """Trap 28: interleaved conversations see their own tokens only."""
    one, two = desk.chat.create("one"), desk.chat.create("two")
    for at in range(3):
        list(desk.chat.send(one, f"apple {at}"))
        list(desk.chat.send(two, f"pear {at}"))
    assert "pear" not in desk.seen(one)
    assert "apple" not in desk.seen(two)
    assert desk.seen(two).count("pear") == 3


def test_the_end_of_turn_of_the_template_ends_an_answer_that_the_engine_would_go_on_with(desk: Desk) -> None:
    end = min(desk.template.end_ids)
    desk.engine._script = lambda prompt: [*desk.template.tokenizer.encode("Yes."), end, 50, 51, 52]
    conversation = desk.talk("Hello")
    assert desk.engine.requests[0].sampling.stop_token_ids == (end,)
    assert (conversation.turns[-1].text, (conversation.turns[-1].token_ids or ())[-1]) == ("Yes.", end)


def test_reasoning_is_shown_and_stored_apart_and_the_rewrite_is_told(tmp_path: Path) -> None:
    thinking = ChatTemplate.from_dir(write_model(tmp_path / "model", QWEN_THINKING))
    desk = Desk(tmp_path, thinking, "<think>\nHello you\n</think>\n\nThe answer is no.")
    conversation = desk.chat.create()
    events = list(desk.chat.send(conversation, "One"))
    answer = conversation.turns[-1]
    assert (answer.reasoning, answer.text) == ("Hello you\n", "The answer is no.")
    assert shown(events) == answer.text
    assert [notice for notice in desk.chat.notices(conversation) if "rewrite the past" in notice]
    list(desk.chat.send(conversation, "Two"))
    assert "<think>\nHello you\n</think>" in desk.seen(conversation)
    desk.store.close()


def test_a_model_without_template_stops_at_its_stop_string(tmp_path: Path) -> None:
    plain = ChatTemplate.from_dir(write_model(tmp_path / "model", None))
    desk = Desk(tmp_path, plain)
    desk.engine._script = lambda prompt: plain.tokenizer.encode(" Hello there\nUser: and I ramble on")
    conversation = desk.chat.create()
    events = list(desk.chat.send(conversation, "Hi"))
    assert shown(events) == "Hello there"
    assert conversation.turns[-1].finish is Finish.COMPLETE
    list(desk.chat.send(conversation, "And?"))
    text = plain.tokenizer.decode(desk.engine.requests[1].token_ids)
    assert text == "User: Hi\nAssistant: Hello there\nUser: And?\nAssistant:"
    desk.store.close()


@pytest.mark.parametrize("text", ["", "  \n\t"])
def test_an_empty_message_is_refused(desk: Desk, text: str) -> None:
    conversation = desk.chat.create()
    with pytest.raises(UsageError, match="empty"):
        list(desk.chat.send(conversation, text))
    assert conversation.turns == ()
    assert not conversation.is_busy


@pytest.mark.parametrize("verb", [Chat.retry, Chat.continue_answer])
def test_an_empty_conversation_has_nothing_to_answer(desk: Desk, verb: Callable) -> None:
    with pytest.raises(UsageError, match="send a message"):
        list(verb(desk.chat, desk.chat.create()))


class WeighingHandle(ScriptedHandle):
    """A request whose prompt is stored, and faster computed than loaded."""

    def take_events(self, timeout_s: float) -> tuple[Event, ...]:
        estimate = LoadEstimate(choice=LoadChoice.COMPUTE, load_s=9.0, compute_s=1.0, expected_s=1.0)
        is_first = not self._has_begun
        events = super().take_events(timeout_s)
        planned = LoadPlanned(request_id=self.request_id, sequence=self.sequence, estimate=estimate)
        return (planned, *events) if is_first else events


def test_an_answer_keeps_what_became_of_the_stored_part_of_its_prompt(desk: Desk) -> None:
    conversation = desk.talk("One")
    desk.engine.handle_class = WeighingHandle
    list(desk.chat.send(conversation, "Two"))
    assert [turn.stored for turn in conversation.turns] == [None, Stored.NOTHING, None, Stored.COMPUTED]
    assert desk.store.turn(conversation.turns[-1].id).stored is Stored.COMPUTED


def test_opening_a_session_begins_to_load_its_path(desk: Desk) -> None:
    conversation = desk.talk("Hello")
    opened = desk.chat.open(conversation.session.id)
    assert desk.engine.prefetched == [list(opened.token_ids or ())]
    assert opened.token_ids


def test_selecting_a_session_loads_it_and_leaving_the_list_ends_that(desk: Desk) -> None:
    conversation = desk.talk("Hello")
    desk.chat.prefetch(conversation.session.id, None, conversation)
    desk.chat.prefetch(None)
    assert desk.engine.prefetched == [list(conversation.token_ids or ()), []]
