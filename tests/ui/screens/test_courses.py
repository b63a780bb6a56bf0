"""Changing, taking back and leaving out what was said: the cost comes first, and nothing is lost."""

from pathlib import Path
from threading import Event

import pytest

from kvchat.engine.api.status import EnginePhase
from kvchat.text.cache_usage import bytes_of
from kvchat.text.figures import bytes_text
from kvchat.ui.screens.confirm import ConfirmScreen
from tests.ui.harness import Window, window
from tests.ui.scripted import Answer
from tests.ui.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.tui

LONG = " and so on" * 52
TALK = ("How do I get to Oslo?", "And by boat?", "When does it sail?")


async def say_all(shown: Window) -> None:
    for text in TALK:
        await shown.say_and_wait(text)


async def until_asked(shown: Window) -> None:
    await shown.until(lambda: isinstance(shown.app.screen, ConfirmScreen))


async def test_undo_says_what_it_costs_and_where_the_rest_stays_before_it_is_done(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="By train.")) as shown:
        await say_all(shown)
        await shown.say("/undo 2")
        await until_asked(shown)
        assert "Take back your last 2 messages and their answers?" in shown.text
        assert "“And by boat?”" in shown.text
        for row in ("computed again  nothing", "reused          21 tokens", "kept            on branch main"):
            assert row in shown.text
        assert "taken back      4 messages (28 tokens)" in shown.text
        assert shown.chat.store.paths.keys() == {("s1", "main")}
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.questions == list(TALK[:1]))
        await shown.until_shown("›  main-2")
        await shown.say("/switch main")
        await shown.until(lambda: shown.questions == list(TALK))


def told(shown: Window) -> list[str]:
    return [notice.message for notice in shown.app._notifications]


async def test_the_price_is_said_in_bytes_too_before_and_after(tmp_path: Path) -> None:
    """A block of 64 tokens takes 384 KiB in all six layers."""
    async with window(tmp_path, Answer(text="By train.")) as shown:
        await say_all(shown)
        await shown.say("/drop 2")
        await until_asked(shown)
        assert "on the device   384 KiB computed, 384 KiB reused" in shown.text
        await shown.pilot.press("escape")
        await shown.say("/undo 2")
        await until_asked(shown)
        assert "on the device   0 B computed, 384 KiB reused" in shown.text
        assert "taken back      4 messages (28 tokens), 384 KiB" in shown.text
        await shown.pilot.press("enter")
        await shown.until(lambda: any("which reuses 21 tokens (384 KiB)" in one for one in told(shown)))
        await shown.say("/edit")
        await shown.type("x")
        await shown.pilot.press("enter")
        await shown.until(
            lambda: any(
                "as it was; on the device 384 KiB computed, 384 KiB reused" in one for one in told(shown)
            )
        )


async def test_what_is_not_agreed_to_is_not_done(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await say_all(shown)
        for command in ("/undo", "/drop 2"):
            await shown.say(command)
            await until_asked(shown)
            await shown.pilot.press("escape")
            await shown.until(lambda: not isinstance(shown.app.screen, ConfirmScreen))
        assert shown.chat.store.paths.keys() == {("s1", "main")}
        assert shown.questions == list(TALK)


async def test_an_exchange_is_left_out_and_what_followed_is_computed_again(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="By train.")) as shown:
        await say_all(shown)
        await shown.say("/drop 2")
        await until_asked(shown)
        assert "Leave this message and its answer out?" in shown.text
        assert "computed again  19 tokens, with your next message" in shown.text
        assert "following       2 messages, on a branch of their own" in shown.text
        assert "as it was       branch main" in shown.text
        await shown.pilot.press("y")
        await shown.until(lambda: shown.questions == [TALK[0], TALK[2]])
        await shown.say_and_wait("Thank you.")
        assert [turn.text for turn in shown.chat.open("s1", "main").turns[::2]] == list(TALK)


async def test_the_cost_of_an_edit_is_shown_while_it_is_typed(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/edit")
        size = bytes_text(bytes_of(5, shown.screen.snapshot) or 0)
        await shown.until_shown(f"editing · computes 5 tokens ({size}), 10 reused ({size}) · esc gives up")
        await shown.type(" again")
        await shown.until_shown(f"editing · computes 11 tokens ({size}), 10 reused")
        await shown.pilot.resize_terminal(64, 30)
        await shown.until_shown("editing · computes 11 tokens, 10 reused · esc gives up")
        await shown.pilot.press("escape")
        await shown.until_gone("editing")
        await shown.type("x")
        await shown.pilot.pause(0.5)
        assert "computes" not in shown.text.splitlines()[0]


async def test_an_edit_whose_conversation_is_left_while_its_cost_is_looked_up_comes_back(
    tmp_path: Path,
) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        shown.chat.hold_costs = Event()
        await shown.say("/edit")
        await shown.type(" again")
        await shown.pilot.press("enter", "ctrl+n")
        await shown.until(lambda: shown.screen.turns.conversation is None)
        await shown.type("typed since")
        shown.chat.hold_costs.set()
        await shown.until(lambda: shown.screen.prompt.text == "hello again\ntyped since")
        await shown.until_shown("the changed message was not sent")
        assert shown.chat.sent == ["hello"]


async def test_an_edit_whose_conversation_is_left_while_it_is_asked_about_comes_back(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/edit")
        shown.screen.prompt.insert(LONG)
        await shown.pilot.press("enter")
        await until_asked(shown)
        await shown.screen.turns.show(None)  # another answer's end, another window: keys do not get here
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.screen.prompt.text == f"hello{LONG}")
        assert shown.screen.revisions.editing is None


async def test_there_is_no_more_to_take_back_than_was_said(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/undo")
        await shown.until_shown("nothing has been said here yet")
        await shown.say_and_wait("hello")
        await shown.say("/undo 2")
        await shown.until_shown("there is no message 2 from the end to undo")
        await shown.say("/drop x")
        await shown.until_shown("there is no message x from the end to drop")
        assert shown.questions == ["hello"]


async def test_an_undo_while_the_model_loads_waits_for_what_it_costs(tmp_path: Path) -> None:
    engine = ScriptedEngine(phase=EnginePhase.LOADING)
    async with window(
        tmp_path,
        engine=engine,
        prepare=lambda chat: chat.add_session("Oslo", [("By boat?", "Yes.")]),
        initial="Oslo",
    ) as shown:
        await shown.until(lambda: shown.questions == ["By boat?"])
        await shown.say("/undo")
        await until_asked(shown)
        told = [notice.message for notice in shown.app._notifications]
        assert told == ["what it costs is known when the model is loaded"]
        assert "computed again  nothing" in shown.text


async def test_an_answer_can_be_asked_why_it_computed_what_it_did(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/why")
        await shown.until_shown("nothing has been said here yet")
        await shown.say_and_wait("hello")
        await shown.say("/why")
        await shown.until_shown("Why 13 tokens were computed")
        assert "computed  13 tokens, 13 of them new" in shown.text
        assert "Only what was new to it was computed." in shown.text
        await shown.pilot.press("escape")
        await shown.until_gone("Only what was new")
        await shown.say("/why 2")
        await shown.until_shown("there is no answer 2 from the end to explain")
