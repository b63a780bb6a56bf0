"""What fails is told, and costs the conversation nothing."""

from pathlib import Path

import pytest

from kvchat.chat.events import TurnFinished
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import (
    ContextOverflow,
    EngineFailed,
    ModelUnreadable,
    SessionNotFound,
    StorageError,
    UsageError,
)
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.template.text_stream import Piece
from kvchat.session.tree import Finish
from tests.chat.desk import REPLY, Desk, shown
from tests.tiny_models import CHATML, write_model

pytestmark = pytest.mark.pure


def test_a_question_too_long_for_the_model_is_given_back(desk: Desk) -> None:
    conversation = desk.talk("One")
    before = (conversation.turns, conversation.branch.leaf_id, desk.store.all_turns(conversation.session.id))
    desk.engine.max_context = 60
    with pytest.raises(ContextOverflow):
        list(desk.chat.send(conversation, "word " * 200))
    assert not conversation.is_busy
    assert (
        conversation.turns,
        conversation.branch.leaf_id,
        desk.store.all_turns(conversation.session.id),
    ) == before
    with pytest.raises(ContextOverflow):
        list(desk.chat.edit(conversation, conversation.turns[0].id, "word " * 200))
    assert conversation.turns == before[0]
    assert [branch.name for branch in desk.store.branches(conversation.session.id)] == ["main"]
    assert shown(list(desk.chat.send(conversation, "ok"))) == REPLY


def test_an_engine_that_dies_ends_the_turn_with_what_there_was(desk: Desk) -> None:
    desk.engine.dies_after = 5
    conversation = desk.chat.create()
    events = list(desk.chat.send(conversation, "Hello"))
    finished = events[-1]
    assert isinstance(finished, TurnFinished)
    assert finished.answer.finish is Finish.ERROR
    assert "restart" in (finished.error or "")
    assert shown(events) == finished.answer.text
    assert len(finished.answer.token_ids or ()) == 5
    assert conversation.engine_sequence is None
    desk.engine.dies_after = None
    full = desk.script(())
    desk.engine._script = lambda prompt: full[5:]
    list(desk.chat.continue_answer(conversation))
    assert conversation.turns[-1].text == REPLY


@pytest.mark.parametrize("error", [EngineFailed("dead"), ModelUnreadable("cannot be read")])
def test_a_question_survives_a_model_that_does_not_load(desk: Desk, error: Exception) -> None:
    desk.engine.fails = error
    conversation = desk.chat.create()
    if isinstance(error, EngineFailed):
        assert list(desk.chat.send(conversation, "Hello"))[-1].error == "dead"
    else:
        with pytest.raises(ModelUnreadable):
            list(desk.chat.send(conversation, "Hello"))
    asked, answer = desk.chat.open(conversation.session.id).turns
    assert (asked.text, answer.finish, answer.text) == ("Hello", Finish.ERROR, "")
    desk.engine.fails = None
    list(desk.chat.continue_answer(conversation))
    assert conversation.turns[-1].text == REPLY


def test_a_full_disk_stops_the_answer_and_everything_shown_is_stored(desk: Desk) -> None:
    desk.reply = "word " * 20_000
    desk.engine.step_tokens = 2_000
    conversation = desk.chat.create()
    with desk.store._database.read() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 12}")
    text = []

    def read() -> None:
        events = desk.chat.send(conversation, "Hello", SamplingParams(max_tokens=None))
        text.extend(event.text for event in events if isinstance(event, Piece))

    with pytest.raises(StorageError, match="free some space"):
        read()
    shown_text = "".join(text)
    assert shown_text
    assert desk.engine.handles[0].cancelled.is_set()
    assert not conversation.is_busy
    (_, kept) = desk.chat.open(conversation.session.id).turns
    assert kept.text.startswith(shown_text)
    assert kept.finish in (Finish.INTERRUPTED, Finish.ERROR)
    with desk.store._database.read() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    desk.engine._script = lambda prompt: []
    list(desk.chat.continue_answer(conversation))
    assert conversation.turns[-1].text.startswith(shown_text)


def test_a_session_deleted_under_an_answer_ends_it_with_a_message(desk: Desk) -> None:
    conversation = desk.chat.create()

    def read() -> None:
        for event in desk.chat.send(conversation, "Hello"):
            if isinstance(event, Piece):
                desk.store.delete_session(conversation.session.id)

    with pytest.raises(SessionNotFound, match="deleted"):
        read()
    assert desk.engine.live == {}


def test_a_live_branch_that_the_engine_has_lost_costs_nothing_but_time(desk: Desk) -> None:
    conversation = desk.talk("One")
    desk.engine.live.clear()
    assert shown(list(desk.chat.send(conversation, "Two"))) == REPLY
    assert [request.sequence is None for request in desk.engine.requests] == [True, False, True]
    assert conversation.engine_sequence in desk.engine.live


def test_another_tokenizer_starts_over_from_the_texts_and_is_exact_from_there(
    desk: Desk, tmp_path: Path
) -> None:
    conversation = desk.talk("One", title="demo", system="Be kind.")
    other = ChatTemplate.from_dir(write_model(tmp_path / "other", CHATML))
    second = Desk(tmp_path, other)
    opened = second.chat.open("demo")
    with pytest.raises(UsageError, match="no answer to continue"):
        list(second.chat.continue_answer(opened))
    list(second.chat.send(opened, "Two"))
    assert [turn.starts_over for turn in opened.turns] == [False, False, True, False]
    assert opened.turns[:2] == conversation.turns
    assert second.seen(opened) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nOne<|im_end|>\n"
        f"<|im_start|>assistant\n{REPLY}<|im_end|>\n<|im_start|>user\nTwo<|im_end|>\n<|im_start|>assistant\n"
        f"{REPLY}<|im_end|>"
    )
    before = opened.token_ids or ()
    list(second.chat.send(opened, "Three"))
    assert second.engine.requests[-1].token_ids[: len(before)] == before
    back = desk.chat.open("demo")
    list(desk.chat.retry(back))
    assert back.turns[-2].starts_over
    assert back.turns[-2].text == "Three"
    second.store.close()


def test_a_turn_beyond_repair_costs_its_ids_and_not_the_conversation(desk: Desk) -> None:
    desk.talk("One", title="demo")
    with desk.store._database.write() as connection:
        connection.execute("UPDATE turns SET token_ids = x'00', parts = x'' WHERE role = 'assistant'")
    opened = desk.chat.open("demo")
    assert [turn.damaged for turn in opened.turns] == [False, True]
    list(desk.chat.send(opened, "Two"))
    assert opened.turns[2].starts_over
    assert REPLY in desk.seen(opened)
