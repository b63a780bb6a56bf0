"""Where keys go: what is typed stays in the prompt, and esc leads back to it before it stops anything."""

from pathlib import Path
from threading import Event

import pytest
from textual import events

from kvchat.app.interface_types import Appearance
from kvchat.ui.widgets.list_search_field import FindField
from tests.ui.harness import talk, talk_window, window
from tests.ui.scripted import Answer

pytestmark = pytest.mark.tui


async def test_tab_keeps_the_focus_in_the_prompt_where_nothing_completes(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk) as shown:
        await shown.type("first ")
        await shown.pilot.press("tab", "x", "shift+tab", "y")
        assert shown.app.focused is shown.screen.prompt
        assert shown.screen.prompt.text == "first xy"
        await shown.pilot.press("ctrl+u")
        await shown.type("/s")
        await shown.pilot.press("escape", "tab", "tab")  # offered again, and taken
        assert shown.screen.prompt.text == "/switch"


async def test_esc_in_the_list_and_on_the_walk_goes_back_and_the_answer_goes_on(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, Answer(text="first and later", hold=hold), prepare=talk) as shown:
        await shown.say("go")
        await shown.until_shown("first")
        await shown.say("and then?")
        await shown.until(lambda: len(shown.screen.turns.tab.queue) == 1)
        for key in ("f2", "f6"):
            await shown.pilot.press(key)
            await shown.until(lambda: shown.app.focused is not shown.screen.prompt)
            await shown.pilot.press("escape")
            await shown.until(lambda: shown.app.focused is shown.screen.prompt)
        assert shown.transcript.selected is None
        assert (len(shown.screen.turns.tab.queue), shown.screen.prompt.text) == (1, "")
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.screen.prompt.text == "and then?")
        hold.set()
        await shown.until_shown("interrupted")


async def test_a_stop_key_of_ones_own_stops_from_the_search_field_which_esc_leaves(tmp_path: Path) -> None:
    hold = Event()
    answer, own_keys = Answer(text="first and later", hold=hold), Appearance(keys={"stop": "f12"})
    async with window(tmp_path, answer, prepare=talk, appearance=own_keys) as shown:
        await shown.say("go")
        await shown.until_shown("first")
        await shown.pilot.press("ctrl+f", "f12")
        hold.set()
        await shown.until_shown("interrupted")
        assert isinstance(shown.app.focused, FindField)
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.app.focused is shown.screen.prompt)


async def test_esc_leaves_the_search_field_where_it_is_one_of_ones_own_stop_keys(tmp_path: Path) -> None:
    hold = Event()
    answer, own_keys = Answer(text="first and later", hold=hold), Appearance(keys={"stop": "escape,f12"})
    async with window(tmp_path, answer, prepare=talk, appearance=own_keys) as shown:
        await shown.say("go")
        await shown.until_shown("first")
        await shown.pilot.press("ctrl+f", "escape")
        assert shown.app.focused is shown.screen.prompt
        hold.set()
        await shown.until_answered()
        assert "interrupted" not in shown.text


async def test_a_stop_key_of_ones_own_leaves_the_search_where_nothing_is_answered(tmp_path: Path) -> None:
    own_keys = Appearance(keys={"stop": "f12"})
    async with window(tmp_path, prepare=talk, initial="Oslo", appearance=own_keys) as shown:
        await shown.until(lambda: len(shown.questions) == 2)
        await shown.say("/edit")
        await shown.pilot.press("ctrl+f", "x", "f12")
        assert shown.app.focused is shown.screen.prompt
        assert shown.screen.query_one(FindField).value == ""
        assert shown.screen.revisions.editing is not None


async def test_enter_opens_from_the_list_where_it_is_one_of_ones_own_send_keys(tmp_path: Path) -> None:
    own_keys = Appearance(keys={"send": "enter,f12"})
    async with window(tmp_path, prepare=talk, appearance=own_keys) as shown:
        await shown.until_shown("· Oslo")
        await shown.pilot.press("f2", "down", "enter")
        await shown.until(lambda: len(shown.questions) == 2)


async def test_a_stop_that_comes_too_late_throws_no_aside_away(tmp_path: Path) -> None:
    answer = Answer(text="A fjord is a bay.", pace_s=0.25)
    async with talk_window(tmp_path, answer) as shown:
        await shown.say("/aside What is a fjord?")
        await shown.until_shown("A fjord is a bay.")
        await shown.until_answered()
        ended_s = shown.screen.turns.tab.ended_s
        assert ended_s is not None
        key = events.Key("escape", None)
        key.time = ended_s + 0.7  # however long it took to see that it has ended
        shown.app.post_message(key)
        await shown.until_shown("the answer had ended already")
        await shown.say("/stop")
        await shown.until_shown("no answer is being written")
        assert len(shown.chat.store.paths) == 2
        await shown.pilot.press("escape")
        await shown.until(lambda: len(shown.chat.store.paths) == 1)
