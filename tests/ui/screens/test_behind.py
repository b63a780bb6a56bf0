"""Conversations that are not on screen go on being answered."""

from pathlib import Path
from threading import Event

import pytest

from kvchat.engine.api.status import EnginePhase
from kvchat.errors import ContextOverflow, PoolExhausted
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
        shown.screen.sessions.ask_to_delete(session.id)
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
        assert (shown.chat.sent, shown.questions) == (["first"], [])


async def test_leaving_the_program_stops_all_answers(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="word ", pace_s=0.01, never_ends=True)) as shown:
        await shown.say("first")
        await shown.until(lambda: bool(shown.answers))
        conversation = shown.screen.turns.conversation
        await leave(shown, "beside")
        shown.screen.quit()
        assert conversation.is_stopped


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
        assert (shown.chat.sent, list(shown.screen.turns.queue)) == ([], [])


async def test_what_is_told_of_an_answer_is_told_of_one_behind_the_screen_with_its_title(
    tmp_path: Path,
) -> None:
    hold = Event()
    answer = Answer(hold=hold, fits_in=("int8", "int4"), notices=("a pinned session has outgrown its share",))
    async with window(tmp_path, answer, Answer()) as shown:
        await shown.say("first")
        await shown.until(lambda: bool(shown.answers))
        await leave(shown, "beside")
        hold.set()
        offered = "the cache has no room for it exactly; go there to keep its KV in int8"
        told = {"full", *answer.notices, offered}
        await shown.until(
            lambda: told <= {one.message for one in shown.app._notifications if one.title == "first"}
        )
        assert shown.app.screen is shown.screen
        await go_to(shown, "first")
        await shown.until_shown("in int8? · f9 or /answer")
        await shown.pilot.press("f9")
        await shown.until_shown("The cache has no room for this conversation exactly.")
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.app.screen is shown.screen)
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: not shown.questions)
        await go_to(shown, "first")
        await shown.until_at_rest()
        assert "f9 or /answer" not in shown.text
        assert shown.files.formats == []


async def test_a_message_that_has_no_room_behind_the_screen_is_offered_a_format_where_it_was_said(
    tmp_path: Path,
) -> None:
    hold = Event()
    full = PoolExhausted("no room for 9,000 tokens", ("int8",))
    async with window(tmp_path, Answer(hold=hold), Answer(fail=full)) as shown:
        await shown.say("first")
        await shown.until(lambda: bool(shown.answers))
        await shown.say("a very long one")
        await leave(shown, "beside")
        hold.set()
        await shown.until(lambda: shown.screen.prompt.text == "a very long one")
        words = "go there to keep its KV in int8"
        await shown.until(lambda: any(words in one.message for one in shown.app._notifications))
        shown.screen.prompt.set_text("")
        await go_to(shown, "first")
        await shown.until_shown("in int8? · f9 or /answer")
        assert shown.files.formats == []


async def test_no_format_is_offered_for_an_engine_that_has_been_loaded_anew_since(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, Answer(hold=hold, fits_in=("int8",)), Answer()) as shown:
        await shown.say("first")
        await shown.until(lambda: bool(shown.answers))
        await leave(shown, "beside")
        hold.set()
        words = "go there to keep its KV in int8"
        await shown.until(lambda: any(words in one.message for one in shown.app._notifications))
        shown.engine.phase = EnginePhase.LOADING
        await shown.until(lambda: not shown.screen.is_engine_ready)
        shown.engine.phase = EnginePhase.READY
        await shown.until(lambda: shown.screen.is_engine_ready)
        await go_to(shown, "first")
        await shown.say_and_wait("and then?")
        assert "f9 or /answer" not in shown.text
