"""Whatever ends an answer early, what was sampled is kept."""

from contextlib import closing
from signal import SIGINT, default_int_handler, pthread_kill, signal
from threading import Thread, main_thread

import pytest

from kvchat.chat.events import ChatEvent, TurnFinished
from kvchat.errors import UsageError
from kvchat.session.template.text_stream import Piece
from kvchat.session.tree import Finish
from tests.chat.desk import REPLY, Desk, shown
from tests.patience import wait_until

pytestmark = pytest.mark.pure

NUM_TOKENS = 4
"""What comes of an answer before it is ended."""


def test_an_abandoned_answer_is_stopped_and_kept_as_interrupted(desk: Desk) -> None:
    desk.engine.held_after = NUM_TOKENS
    conversation = desk.chat.create()
    with closing(desk.chat.send(conversation, "Hello")) as events:
        text = ""
        for event in events:
            text += event.text if isinstance(event, Piece) else ""
            if text:
                break
    assert desk.engine.handles[0].cancelled.is_set()
    kept = desk.store.turns_to(conversation.branch.leaf_id)[-1]
    assert kept.finish is Finish.INTERRUPTED
    assert kept.text.startswith(text)
    assert desk.engine.live == {}
    assert not conversation.is_busy
    assert conversation.turns[-1] == kept
    desk.engine.held_after = None
    assert shown(list(desk.chat.send(conversation, "Go on"))) == REPLY


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, BrokenPipeError, SystemExit])
def test_an_answer_is_kept_whatever_ends_its_reader(desk: Desk, interrupt: type[BaseException]) -> None:
    desk.engine.held_after = NUM_TOKENS
    conversation = desk.chat.create()

    def read() -> None:
        with closing(desk.chat.send(conversation, "Hello")) as events:
            for event in events:
                if isinstance(event, Piece):
                    raise interrupt

    with pytest.raises(interrupt):
        read()
    kept = desk.store.turns_to(conversation.branch.leaf_id)[-1]
    assert kept.finish is Finish.INTERRUPTED
    assert kept.text
    assert not conversation.is_busy


def test_an_interrupt_while_waiting_for_the_engine_keeps_what_was_sampled(desk: Desk) -> None:
    """A thread that just begins to wait is interrupted once it is woken, so tokens go on coming."""
    desk.reply = REPLY * 1000
    desk.engine.step_s = 0.005
    desk.engine.at_token = {NUM_TOKENS: lambda: pthread_kill(main_thread().ident or 0, SIGINT)}
    conversation = desk.chat.create()
    before = signal(SIGINT, default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            list(desk.chat.send(conversation, "Hello"))
    finally:
        signal(SIGINT, before)
    kept = desk.store.turns_to(conversation.branch.leaf_id)[-1]
    assert kept.finish is Finish.INTERRUPTED
    assert len(kept.token_ids or ()) >= NUM_TOKENS


def test_sampled_tokens_are_stored_though_nobody_reads(desk: Desk) -> None:
    conversation = desk.chat.create()
    with closing(desk.chat.send(conversation, "Hello")) as events:
        for event in events:
            if isinstance(event, Piece):
                break
        wait_until(lambda: desk.store.turn(conversation.turns[-1].id).text == REPLY)
    # The engine had ended the answer, so it is complete, seen or not.
    assert desk.store.turns_to(conversation.branch.leaf_id)[-1].finish is Finish.COMPLETE


def test_stop_from_another_thread_ends_the_answer_as_interrupted(desk: Desk) -> None:
    desk.engine.held_after = NUM_TOKENS
    conversation = desk.chat.create()
    events: list[ChatEvent] = []
    for event in desk.chat.send(conversation, "Hello"):
        events.append(event)
        if isinstance(event, Piece) and shown(events):
            stopper = Thread(target=desk.chat.stop, args=(conversation,))
            stopper.start()
            stopper.join()
    finished = events[-1]
    assert isinstance(finished, TurnFinished)
    assert (finished.answer.finish, finished.error) == (Finish.INTERRUPTED, None)
    assert shown(events) == finished.answer.text
    assert finished.answer.text != REPLY
    live = conversation.engine_sequence
    desk.engine.held_after = None
    list(desk.chat.send(conversation, "Again"))
    assert desk.engine.requests[-1].sequence == live


def test_closing_a_conversation_that_is_being_answered_stops_it_and_leaves_no_branch(desk: Desk) -> None:
    desk.engine.held_after = NUM_TOKENS
    conversation = desk.chat.create()
    for event in desk.chat.send(conversation, "Hello"):
        if isinstance(event, Piece):
            desk.chat.close(conversation)
    assert desk.engine.live == {}
    assert conversation.turns[-1].finish is Finish.INTERRUPTED


def test_a_second_message_waits_for_its_turn(desk: Desk) -> None:
    conversation = desk.chat.create()
    first = desk.chat.send(conversation, "Hello")
    next(first)
    assert conversation.is_busy
    with pytest.raises(UsageError, match="still being answered"):
        next(desk.chat.send(conversation, "And?"))
    list(first)
    assert not conversation.is_busy


def test_a_conversation_that_leaves_the_screen_makes_way_also_while_it_is_answered(desk: Desk) -> None:
    conversation = desk.chat.create()
    events = desk.chat.send(conversation, "Hello")
    next(event for event in events if isinstance(event, Piece))
    desk.chat.put_behind(conversation)
    assert desk.engine.handles[-1].priorities[-1] > desk.engine.requests[-1].priority == 0
    desk.chat.bring_forward(conversation)
    assert desk.engine.handles[-1].priorities[-1] == 0
    list(events)
    desk.chat.put_behind(conversation)
    assert conversation.engine_sequence is not None
    assert desk.engine.sequence_priorities[conversation.engine_sequence] > 0, "it gives way to others"
    list(desk.chat.send(conversation, "And again"))
    assert desk.engine.requests[-1].priority > 0
