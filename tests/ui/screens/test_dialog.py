"""A dialog goes once, and what comes when it has gone ends nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual import events
from textual.widgets import OptionList

from kvchat.ui.screens.choices import PromptHistoryScreen
from kvchat.ui.screens.dialog import Dialog
from kvchat.ui.screens.inspector import InspectorScreen
from kvchat.ui.screens.tokens import TokensScreen
from kvchat.ui.widgets.session_list import SessionList
from tests.ui.harness import Window, talk_window

pytestmark = pytest.mark.tui


@asynccontextmanager
async def ready_window(tmp_path: Path) -> AsyncIterator[Window]:
    async with talk_window(tmp_path) as shown:
        await shown.until(lambda: shown.screen.is_engine_ready and len(shown.screen.prompt.messages) == 2)
        yield shown


STEPS = (
    ((("f6", "enter"), "enter or the letter"),),
    (((*"/set", "enter"), "enter chooses"), (("enter",), "empty resets it")),
    ((("ctrl+r",), "enter puts it into the prompt"),),
)


async def test_one_that_is_answered_twice_in_one_go_takes_nothing_else_away(tmp_path: Path) -> None:
    async with ready_window(tmp_path) as shown:
        for steps in STEPS:
            for keys, seen in steps:
                await shown.pilot.press(*keys)
                await shown.until_shown(seen)
            dialog = shown.app.screen
            assert isinstance(dialog, Dialog)
            await shown.burst("\n\n")
            await shown.until(lambda dialog=dialog: dialog not in shown.app.screen_stack)
            await shown.pilot.pause()
            assert shown.app.is_running
            assert shown.app.screen_stack[0] is shown.screen
            while shown.app.screen is not shown.screen or not shown.screen.prompt.has_focus:
                await shown.pilot.press("escape")
            shown.screen.prompt.set_text("")


async def test_a_message_is_chosen_as_it_was_also_if_the_list_changes_at_that_moment(tmp_path: Path) -> None:
    async with ready_window(tmp_path) as shown:
        await shown.pilot.press("ctrl+r")
        await shown.until_shown("earlier messages")
        screen = shown.app.screen
        assert isinstance(screen, PromptHistoryScreen)
        screen._show("boat")
        screen.query_one(OptionList).action_select()
        screen._show("something else")
        await shown.until_back()
        assert shown.screen.prompt.text == "By boat?"


async def test_a_session_that_leaves_the_list_while_it_is_chosen_is_not_opened(tmp_path: Path) -> None:
    async with ready_window(tmp_path) as shown:
        listed = shown.screen.query_one(SessionList)
        shown.chat.add_session("Bergen", [("By bus?", "By air.")])
        shown.screen.sessions.refresh()
        await shown.until(lambda: len(listed.lines) == 2)
        listed.highlighted = [line.is_active for line in listed.lines].index(False)
        listed.action_select()
        listed.show_sessions((), listed._drawn_as)
        await shown.pilot.pause()
        assert shown.app.is_running
        assert shown.questions == ["By boat?", "How long?"]


async def test_what_is_looked_up_for_a_dialog_that_has_gone_is_not_drawn(tmp_path: Path) -> None:
    async with ready_window(tmp_path) as shown:
        shown.screen.commands.run("/tokens")
        await shown.until_shown("75.00%")
        tokens = shown.app.screen
        assert isinstance(tokens, TokensScreen)
        tokens.dismiss(None)
        shown.screen.commands.run("/cache blocks")
        await shown.until_shown("sessions on the device")
        inspector = shown.app.screen
        assert isinstance(inspector, InspectorScreen)
        inspector.dismiss(None)
        await shown.until(lambda: not tokens.children and not inspector.children)
        await tokens._look_up(0).wait()
        await inspector._read().wait()
        assert not tokens.is_open
        assert not inspector.is_open
        assert shown.app.screen is shown.screen


async def test_keys_that_are_pressed_in_one_go_open_one_at_most(tmp_path: Path) -> None:
    async with ready_window(tmp_path) as shown:
        heights: list[int] = []

        def look() -> None:
            heights.append(len(shown.app.screen_stack))

        shown.screen.set_interval(0.001, look)
        for keys in (["f7"] * 3, ["f7", "f1", "ctrl+r", "f7"]):
            heights.clear()
            for key in keys:
                shown.app.post_message(events.Key(key, None))
            await shown.until(lambda: max(heights, default=0) > 1)
            await shown.pilot.pause()
            await shown.pilot.press("escape")
            await shown.until_back()
            assert max(heights) == 2


async def test_enter_that_is_pressed_twice_on_a_message_asks_once_what_to_do(tmp_path: Path) -> None:
    async with ready_window(tmp_path) as shown:
        await shown.pilot.press("f6")
        shown.transcript.action_choose()
        shown.transcript.action_choose()
        await shown.until_shown("enter or the letter")
        assert len(shown.app.screen_stack) == 2
        await shown.pilot.press("escape")
        await shown.until_back()
        await shown.until_at_rest()
