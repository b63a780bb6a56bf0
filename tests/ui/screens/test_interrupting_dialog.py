"""Questions and results that come later than the key that asked for them take nothing that is being typed."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest
from textual import events

from kvchat.ui.screens.choices import ConfirmScreen
from kvchat.ui.screens.dialog import REST_S
from kvchat.ui.screens.help import HelpScreen
from tests.ui.gate import hold
from tests.ui.harness import Window, talk_window

pytestmark = pytest.mark.tui

Owner = Callable[[Window], Any]
LATE: dict[str, tuple[Owner, str]] = {
    "/cache format int4": (lambda shown: shown.files, "format_cost"),
    "/gauge": (lambda shown: shown.files, "gauge"),
    "/undo": (lambda shown: shown.chat, "plan_undo"),
    "/drop": (lambda shown: shown.chat, "plan_drop"),
    "/delete": (lambda shown: shown.files, "freed_by_deleting"),
    "/retry 2": (lambda shown: shown.chat.variants, "retry_cost"),
    "/why": (lambda shown: shown.chat, "why"),
    "/tokens": (lambda shown: shown.chat.variants.tokens, "texts"),
    "/set": (lambda shown: shown.files, "settings"),
    "/model": (lambda shown: shown.files, "models"),
}


async def test_what_is_typed_meanwhile_goes_on_and_a_key_lets_the_question_come(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        for command, (owner, name) in LATE.items():
            gate = hold(owner(shown), name)
            await shown.burst(f"{command}\nyes")
            gate.open()
            await shown.until_shown("f9 opens")
            await shown.burst(" indeed")
            assert (command, shown.screen.prompt.text) == (command, "yes indeed")
            assert shown.app.screen is shown.screen
            await shown.pilot.press("f9")
            await shown.until(lambda: shown.app.screen is not shown.screen)
            while shown.app.screen is not shown.screen:
                await shown.pilot.press("escape")
            await shown.until_gone("f9 opens")
            shown.screen.prompt.set_text("")
        assert shown.questions == ["By boat?", "How long?"]
        assert (shown.files.formats, len(shown.chat.store.paths)) == ([], 1)


async def test_a_costly_edit_that_is_asked_about_late_lets_the_next_message_be_typed(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        shown.chat.hold_costs = Event()
        await shown.say("/edit")
        shown.screen.prompt.insert("x" * 600)
        await shown.pilot.press("enter")
        await shown.type("y")
        shown.chat.hold_costs.set()
        await shown.until_shown("Change this message? · f9 opens")
        assert shown.screen.prompt.text == "y"
        await shown.pilot.press("f9", "enter")
        await shown.until(lambda: shown.questions[-1].endswith("x" * 600))
        await shown.until_answered()
        assert shown.screen.prompt.text == "y"


async def test_a_text_that_begins_like_an_answer_agrees_to_nothing(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        early_s = monotonic()
        for typed in ("yes", "no "):
            await shown.burst("/delete\n")
            await shown.until_on_top(ConfirmScreen)
            await shown.burst(typed)
            await shown.until(lambda typed=typed: shown.screen.prompt.text == typed)
            await shown.until_shown("Delete “Oslo”? · f9 opens")
            shown.screen.prompt.set_text("")
            await shown.burst("/answer\n")
            await shown.until_on_top(ConfirmScreen)
            await shown.burst("\n", early_s)  # as pressed before the question was there
            await shown.until_shown("Delete “Oslo”? · f9 opens")
            await shown.pilot.press("f9", "escape")
            await shown.until_gone("Delete “Oslo”?")
        assert shown.chat.store.sessions
        await shown.say("/delete")
        await shown.until_on_top(ConfirmScreen)
        await shown.pilot.press("y")
        await shown.until(lambda: not shown.chat.store.sessions)


async def test_a_letter_agrees_to_nothing_where_the_next_one_is_already_there(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        await shown.burst("/delete\n")
        await shown.until_on_top(ConfirmScreen)
        dialog, letter = shown.app.screen, events.Key("y", "y")
        assert isinstance(dialog, ConfirmScreen)
        assert dialog.text_of(letter) == ()
        shown.app.post_message(events.Key("e", "e"))
        dialog._look_whether_alone(letter)  # the rest is over before the window has come to what waits
        await shown.until(lambda: shown.screen.prompt.text == "ye")
        assert shown.chat.store.sessions


async def test_a_question_about_what_was_said_before_the_last_message_changes_nothing(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        gate = hold(shown.chat, "plan_undo")
        await shown.say("/undo")
        await shown.say_and_wait("And back?")
        gate.open()
        await shown.until_shown("f9 opens")
        await shown.pilot.press("f9", "y")
        await shown.until_shown("the conversation has gone on since")
        assert shown.questions == ["By boat?", "How long?", "And back?"]
        assert len(shown.chat.store.paths) == 1


async def test_a_letter_before_something_else_opens_agrees_to_nothing(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        await shown.burst("/delete\n")
        await shown.until_on_top(ConfirmScreen)
        dialog = shown.app.screen
        shown.app.post_message(events.Key("y", "y"))
        shown.app.push_screen(HelpScreen({}))  # before the letter stands alone for long enough
        await shown.until(lambda: shown.app.screen not in (dialog, shown.screen))
        await shown.pilot.pause(2 * REST_S)
        assert shown.app.screen not in (dialog, shown.screen)
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.app.screen is dialog)
        assert shown.chat.store.sessions
        await shown.pilot.press("n")
        await shown.until_back()


async def test_a_question_that_another_takes_the_place_of_goes_wherever_it_is(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        shown.screen.commands.run("/cache format int4")
        await shown.until_shown("as int4?")
        first = shown.app.screen
        shown.screen.commands.run("/cache format int8")
        await shown.until(lambda: first not in shown.app.screen_stack)
        await shown.until_on_top(ConfirmScreen)
        await shown.until_shown("as int8?")
        second = shown.app.screen
        shown.app.push_screen(HelpScreen({}))
        await shown.until(lambda: shown.app.screen is not second)
        shown.screen.commands.run("/cache format int4")
        await shown.pilot.press("escape")
        await shown.until(lambda: second not in shown.app.screen_stack)
        await shown.until_shown("as int4? · f9 opens")
        await shown.pilot.press("f9")
        await shown.until_shown("as int4?")
        await shown.pilot.press("escape")
        await shown.until_back()
        assert shown.files.formats == []


async def test_tokens_that_are_chosen_from_another_conversation_change_nothing(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        await shown.until(lambda: shown.screen.is_engine_ready)
        gate = hold(shown.chat.variants.tokens, "texts")
        await shown.burst("/tokens\n")
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: shown.questions == [])
        gate.open()
        await shown.until_shown("an answer as tokens · f9 opens")
        await shown.pilot.press("f9")
        await shown.until_shown("75.00%")
        shown.app.simulate_key("enter")
        await shown.until_shown("another conversation is on the screen now")
        assert (len(shown.chat.store.paths), shown.questions) == (1, [])
