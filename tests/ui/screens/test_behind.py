"""Conversations that are not on screen go on being answered."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.errors import ContextOverflow, PoolExhausted
from tests.ui.harness import Window, window
from tests.ui.scripted import Answer
from tests.ui.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.tui


async def leave(shown: Window) -> None:
    """Begin another conversation while one is being answered."""
    await shown.say("/new beside")
    await shown.until(lambda: not shown.questions)


async def go_back(shown: Window) -> None:
    await shown.say("/switch first")
    await shown.until(lambda: "first" in shown.text.splitlines()[0])


@asynccontextmanager
async def answered_behind(
    tmp_path: Path, *answers: Answer, queued: str | None = None
) -> AsyncIterator[tuple[Window, Event]]:
    """Leave a conversation while its first answer is held by the event, and a message may wait behind it."""
    hold = Event()
    async with window(tmp_path, replace(answers[0], hold=hold), *answers[1:]) as shown:
        await shown.say("first")
        await shown.until(lambda: bool(shown.answers))
        if queued is not None:
            await shown.say(queued)
        await leave(shown)
        yield shown, hold
        hold.set()


async def test_two_conversations_are_answered_at_once_each_with_all_its_text(tmp_path: Path) -> None:
    slow = Answer(text="It begins here and it ends there.", piece_len=15)
    async with answered_behind(tmp_path, slow, Answer(text="The other answer.")) as (shown, hold):
        [session] = shown.chat.store.sessions
        assert shown.chat.behind == [session]
        shown.screen.begin(partial(shown.screen.sessions.ask_to_delete, session))
        await shown.until_shown("an answer is being written there")
        assert "It begins here" not in shown.conversation_text
        await shown.say("second")
        await shown.until_shown("The other answer.")
        assert (shown.questions, shown.screen.turns.is_any_running) == (["second"], True)
        await go_back(shown)
        await shown.until_shown("It begins here")
        assert (shown.questions, shown.chat.behind) == (["first"], [])
        hold.set()
        await shown.until_shown("it ends there.")
        await shown.until_answered()
        assert len(shown.answers) == 1
        assert session in shown.chat.store.sessions


async def test_what_waits_in_a_conversation_is_sent_there_after_it_is_left(tmp_path: Path) -> None:
    async with answered_behind(tmp_path, Answer(), queued="after that") as (shown, hold):
        await shown.until(lambda: "queued" not in shown.text)
        hold.set()
        await shown.until(lambda: shown.chat.sent == ["first", "after that"])
        await shown.until(lambda: not shown.screen.turns.is_any_running)
        await go_back(shown)
        await shown.until(lambda: shown.questions == ["first", "after that"])


async def test_a_message_that_is_refused_behind_comes_back_to_the_prompt(tmp_path: Path) -> None:
    refused = Answer(fail=ContextOverflow("too long"))
    async with answered_behind(tmp_path, Answer(), refused, queued="far too long") as (shown, hold):
        hold.set()
        await shown.until(lambda: shown.screen.prompt.text == "far too long")
        await shown.until_shown("too long")
        assert (shown.chat.sent, shown.questions) == (["first"], [])


async def test_leaving_the_program_stops_all_answers(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="word ", pace_s=0.01, never_ends=True)) as shown:
        await shown.say("first")
        await shown.until(lambda: bool(shown.answers))
        conversation = shown.screen.turns.conversation
        await leave(shown)
        shown.screen.quit()
        assert conversation.is_stopping


async def test_an_engine_that_fails_says_why_and_gives_back_what_waits_behind_too(tmp_path: Path) -> None:
    engine = ScriptedEngine(phase=EnginePhase.LOADING)
    async with window(tmp_path, engine=engine) as shown:
        await shown.say("first")
        await shown.say("/new beside")
        await shown.until(lambda: not shown.screen.turns.tab.queue)
        await shown.say("second")
        engine.phase = EnginePhase.FAILED
        await shown.until(lambda: shown.screen.prompt.text.splitlines() == ["second", "first"])
        await shown.until_shown("the model file is damaged")
        assert (shown.chat.sent, list(shown.screen.turns.tab.queue), shown.questions) == ([], [], [])


async def test_what_is_told_of_an_answer_is_told_of_one_behind_with_its_title(tmp_path: Path) -> None:
    answer = Answer(fits_in=("int8", "int4"), notices=("a pinned session has outgrown its share",))
    async with answered_behind(tmp_path, answer, Answer()) as (shown, hold):
        hold.set()
        offered = "the cache has no room for it exactly; go there to keep its KV in int8"
        told = {"full", *answer.notices, offered}
        await shown.until(
            lambda: told <= {one.message for one in shown.app._notifications if one.title == "first"}
        )
        assert shown.app.screen is shown.screen
        await go_back(shown)
        await shown.until_shown("in int8? · f9 opens")
        await shown.pilot.press("f9")
        await shown.until_shown("The cache has no room for this conversation exactly.")
        await shown.pilot.press("escape")
        await shown.until_back()
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: not shown.questions)
        await go_back(shown)
        await shown.until_at_rest()
        assert "f9 opens" not in shown.text
        assert shown.files.formats == []


async def test_a_message_without_room_is_offered_a_format_where_it_was_said(tmp_path: Path) -> None:
    full = Answer(fail=PoolExhausted("no room for 9,000 tokens", ("int8",)))
    async with answered_behind(tmp_path, Answer(), full, queued="a very long one") as (shown, hold):
        hold.set()
        await shown.until(lambda: shown.screen.prompt.text == "a very long one")
        await shown.until_told("go there to keep its KV in int8")
        shown.screen.prompt.set_text("")
        await go_back(shown)
        await shown.until_shown("in int8? · f9 opens")
        assert shown.files.formats == []


async def test_no_format_is_offered_for_an_engine_that_has_been_loaded_anew_since(tmp_path: Path) -> None:
    async with answered_behind(tmp_path, Answer(fits_in=("int8",)), Answer()) as (shown, hold):
        hold.set()
        await shown.until_told("go there to keep its KV in int8")
        shown.engine.phase = EnginePhase.LOADING
        await shown.until(lambda: not shown.screen.is_engine_ready)
        shown.engine.phase = EnginePhase.READY
        await shown.until(lambda: shown.screen.is_engine_ready)
        await go_back(shown)
        await shown.say_and_wait("and then?")
        assert "f9 opens" not in shown.text
