"""Conversations that are not on screen go on being answered."""

from pathlib import Path
from threading import Event

import pytest

from kvchat.engine.api.status import EnginePhase
from kvchat.errors import ContextOverflow
from tests.ui.harness import Window, window
from tests.ui.scripted import Answer
from tests.ui.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.tui


async def leave(shown: Window, title: str) -> None:
    """Begin another conversation while one is being answered."""
    await shown.type(f"/new {title}")
    await shown.pilot.press("enter")
    await shown.until(lambda: not shown.questions)


async def go_to(shown: Window, title: str) -> None:
    await shown.type(f"/switch {title}")
    await shown.pilot.press("enter")
    await shown.until(lambda: title in shown.text.splitlines()[0])


async def test_two_conversations_are_answered_at_once(tmp_path: Path) -> None:
    first, second = Event(), Event()
    answers = [
        Answer(text="One answer, slowly given.", hold=first),
        Answer(text="The other answer.", hold=second),
    ]
    async with window(tmp_path, *answers) as shown:
        await shown.say("first")
        await shown.until(lambda: bool(shown.answers))
        await leave(shown, "beside")
        await shown.say("second")
        await shown.until(lambda: shown.chat.sent == ["first", "second"])
        assert shown.questions == ["second"]
        second.set()
        await shown.until_shown("The other answer.")
        assert shown.screen.turns.is_any_running
        first.set()
        await shown.until(lambda: not shown.screen.turns.is_any_running)
        await go_to(shown, "first")
        await shown.until_shown("One answer, slowly given.")


async def test_an_answer_that_is_come_back_to_shows_all_its_text_and_goes_on(tmp_path: Path) -> None:
    hold = Event()
    answer = Answer(text="It begins here and it ends there.", piece_len=15, hold=hold)
    async with window(tmp_path, answer) as shown:
        await shown.say("first")
        await shown.until_shown("It begins here")
        await leave(shown, "beside")
        assert "It begins here" not in shown.conversation_text
        await go_to(shown, "first")
        await shown.until_shown("It begins here")
        assert shown.questions == ["first"]
        hold.set()
        await shown.until_shown("it ends there.")
        await shown.until(lambda: not shown.screen.turns.is_running)
        assert len(shown.answers) == 1


async def test_what_waits_in_a_conversation_is_sent_there_after_it_is_left(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, Answer(text="one", hold=hold), Answer(text="two")) as shown:
        await shown.say("first")
        await shown.until(lambda: bool(shown.answers))
        await shown.say("after that")
        await leave(shown, "beside")
        assert "queued" not in shown.text
        hold.set()
        await shown.until(lambda: shown.chat.sent == ["first", "after that"])
        await shown.until(lambda: not shown.screen.turns.is_any_running)
        await go_to(shown, "first")
        await shown.until(lambda: shown.questions == ["first", "after that"])


async def test_what_is_behind_makes_way_for_what_is_on_screen(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, Answer(hold=hold)) as shown:
        await shown.say("first")
        await shown.until(lambda: bool(shown.answers))
        session = shown.screen.turns.conversation.session.id
        await leave(shown, "beside")
        assert shown.chat.behind == [session]
        await go_to(shown, "first")
        assert shown.chat.behind == []
        hold.set()


async def test_a_conversation_that_is_answered_behind_is_not_deleted(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, Answer(hold=hold)) as shown:
        await shown.say("first")
        await shown.until(lambda: bool(shown.answers))
        session = shown.screen.turns.conversation.session
        await leave(shown, "beside")
        shown.screen.shelf.ask_to_delete(session.id)
        await shown.until_shown("an answer is being written there")
        assert session.id in shown.chat.store.sessions
        hold.set()


async def test_a_message_that_is_refused_behind_comes_back_to_the_prompt(tmp_path: Path) -> None:
    hold = Event()
    refused = Answer(fail=ContextOverflow("too long"))
    async with window(tmp_path, Answer(hold=hold), refused) as shown:
        await shown.say("first")
        await shown.until(lambda: bool(shown.answers))
        await shown.say("far too long")
        await leave(shown, "beside")
        hold.set()
        await shown.until(lambda: shown.screen.prompt.text == "far too long")
        await shown.until_shown("too long")


async def test_leaving_the_program_stops_all_answers(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, Answer(text="a long answer", piece_len=3, hold=hold)) as shown:
        await shown.say("first")
        await shown.until(lambda: bool(shown.answers))
        conversation = shown.screen.turns.conversation
        await leave(shown, "beside")
        shown.screen.quit()
        assert conversation.is_stopped
        hold.set()


async def test_an_engine_that_fails_to_load_gives_back_what_waits_behind_too(tmp_path: Path) -> None:
    engine = ScriptedEngine(phase=EnginePhase.LOADING)
    async with window(tmp_path, engine=engine) as shown:
        await shown.say("first")
        await shown.type("/new beside")
        await shown.pilot.press("enter")
        await shown.until(lambda: not shown.screen.turns.queue)
        await shown.say("second")
        engine.phase = EnginePhase.FAILED
        await shown.until(lambda: shown.screen.prompt.text.splitlines() == ["second", "first"])
