"""Changing, taking back and leaving out what was said: the cost comes first, and nothing is lost."""

from pathlib import Path
from threading import Event

import pytest

from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.text.cache_usage import bytes_of
from kvchat.text.figures import bytes_text
from kvchat.ui.screens.choices import ConfirmScreen
from tests.ui.harness import Window, talk, window
from tests.ui.scripted import Answer
from tests.ui.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.tui

LONG = " and so on" * 52
TALK = ("How do I get to Oslo?", "And by boat?", "When does it sail?")


async def say_all(shown: Window) -> None:
    for text in TALK:
        await shown.say_and_wait(text)


async def ask_twice(shown: Window, command: str, *rows: str) -> None:
    """Ask for a change, see what it would cost, decline so that nothing happens, and ask again."""
    await shown.say(command)
    await shown.until_on_top(ConfirmScreen)
    for row in rows:
        assert row in shown.text
    await shown.pilot.press("escape")
    await shown.until_back()
    assert shown.chat.store.paths.keys() == {("s1", "main")}
    assert shown.questions == list(TALK)
    await shown.say(command)
    await shown.until_on_top(ConfirmScreen)


async def test_undo_says_what_it_costs_and_where_the_rest_stays_before_it_is_done(tmp_path: Path) -> None:
    """A block of 64 tokens takes 384 KiB in all six layers."""
    async with window(tmp_path, Answer(text="By train.")) as shown:
        await say_all(shown)
        await ask_twice(
            shown,
            "/undo 2",
            "Take back your last 2 messages and their answers?",
            "“And by boat?”",
            "computed again  nothing",
            "reused          21 tokens",
            "on the device   0 B computed, 384 KiB reused",
            "taken back      4 messages (28 tokens), 384 KiB",
            "original        kept on main",
        )
        await shown.pilot.press("enter")
        await shown.until_told("which reuses 21 tokens (384 KiB)")
        await shown.until(lambda: shown.questions == list(TALK[:1]))
        await shown.until_shown("›  main-2")
        await shown.say("/switch main")
        await shown.until(lambda: shown.questions == list(TALK))


async def test_an_exchange_is_left_out_and_what_followed_is_computed_again(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="By train.")) as shown:
        await say_all(shown)
        await ask_twice(
            shown,
            "/drop 2",
            "Remove this message and its answer?",
            "computed again  19 tokens, with your next message",
            "on the device   384 KiB computed, 384 KiB reused",
            "following       2 messages, on a branch of their own",
            "original kept   on main",
        )
        await shown.pilot.press("y")
        await shown.until(lambda: shown.questions == [TALK[0], TALK[2]])
        await shown.say_and_wait("Thank you.")
        assert [turn.text for turn in shown.chat.open("s1", "main").turns[::2]] == list(TALK)


async def test_the_cost_of_an_edit_is_shown_while_it_is_typed_and_when_it_is_sent(tmp_path: Path) -> None:
    async with window(tmp_path, size=(170, 40)) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/edit")
        size = bytes_text(bytes_of(5, shown.screen.snapshot) or 0)
        await shown.until_shown(
            f"editing message 1 · computes 5 tokens ({size}), 10 reused ({size}) · esc cancels"
        )
        await shown.type(" again")
        await shown.until_shown(f"editing message 1 · computes 11 tokens ({size}), 10 reused")
        await shown.pilot.resize_terminal(76, 30)
        await shown.until_shown("editing message 1 · computes 11 tokens, 10 reused · esc cancels")
        await shown.pilot.press("escape")
        await shown.until_gone("editing")
        await shown.type("x")
        await shown.pilot.pause(0.5)
        assert "computes" not in shown.text.splitlines()[0]
        shown.screen.prompt.set_text("")
        await shown.say("/edit")
        await shown.say("!")
        await shown.until_told("as it was; on the device 384 KiB computed, 384 KiB reused")


async def test_the_message_that_is_edited_is_framed_and_named_until_the_edit_ends(tmp_path: Path) -> None:
    async with window(tmp_path, size=(80, 24)) as shown:
        await say_all(shown)
        await shown.say("/edit 2")
        await shown.until_shown("editing message 2")
        frame = next(line for line in shown.text.splitlines() if "─ editing ─" in line)
        lines = shown.text.splitlines()
        assert TALK[1] in lines[lines.index(frame) + 1]
        heading = shown.screen.query_one("#heading")
        assert heading.styles.color == shown.transcript.views[0].styles.color, "not dim"
        await shown.pilot.press("escape")
        await shown.until_gone("editing")
        await shown.say("/edit 2")
        await shown.until_shown("─ editing ─")
        await shown.say("!")
        await shown.until_gone("editing")


async def test_an_edit_comes_back_whose_conversation_is_left_while_it_is_priced(tmp_path: Path) -> None:
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


async def test_an_edit_comes_back_whose_conversation_is_left_while_it_is_asked_about(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/edit")
        shown.screen.prompt.insert(LONG)
        await shown.pilot.press("enter")
        await shown.until_on_top(ConfirmScreen)
        await shown.screen.turns.show(None)  # another answer's end, another window: keys do not get here
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.screen.prompt.text == f"hello{LONG}")
        assert shown.screen.revisions.editing is None


async def test_an_undo_while_the_model_loads_waits_for_what_it_costs(tmp_path: Path) -> None:
    engine = ScriptedEngine(phase=EnginePhase.LOADING)
    async with window(tmp_path, engine=engine, prepare=talk, initial="Oslo") as shown:
        await shown.until(lambda: len(shown.questions) == 2)
        await shown.say("/undo")
        await shown.until_on_top(ConfirmScreen)
        assert shown.told == ["what it costs is known when the model is loaded"]
        assert "computed again  nothing" in shown.text


async def test_an_answer_can_be_asked_why_it_computed_what_it_did(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/why")
        await shown.until_shown("Why 13 tokens were computed")
        assert "computed  13 tokens, 13 of them new" in shown.text
        assert "Only what was new to it was computed." in shown.text
        await shown.pilot.press("escape")
        await shown.until_gone("Only what was new")


async def test_there_is_no_more_to_look_at_or_take_back_than_was_said(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        for command, why in (
            ("/why 2", "there is no answer 2 from the end to explain"),
            ("/undo 2", "there is no message 2 from the end to undo"),
            ("/drop x", "there is no message x from the end to drop"),
        ):
            await shown.say(command)
            await shown.until_shown(why)
        assert shown.questions == ["hello"]
