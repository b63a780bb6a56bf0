"""The last line: the keys of what has the focus, for the keyboard and for the mouse."""

from pathlib import Path
from threading import Event

import pytest

from kvchat.app.interface_types import Appearance
from kvchat.ui.screens.help import HelpScreen
from kvchat.ui.widgets.session_list import SessionList
from tests.ui.harness import Window, talk, talk_window, window
from tests.ui.scripted import Answer

pytestmark = pytest.mark.tui


def last_line(shown: Window) -> str:
    return shown.text.splitlines()[-1].strip()


async def until_hinted(shown: Window, words: str) -> None:
    await shown.until(lambda: last_line(shown).endswith(words))


async def click_hint(shown: Window, words: str) -> None:
    await shown.until(lambda: words in last_line(shown))
    line = shown.text.splitlines()[-1]
    await shown.pilot.click(offset=(line.index(words) + 1, shown.app.size.height - 1))


async def test_the_keys_are_named_at_every_size_before_and_after_an_answer_and_stop_meanwhile(
    tmp_path: Path,
) -> None:
    hold, sizes = Event(), [(140, 45), (80, 24), (60, 18), (40, 12)]
    async with window(tmp_path, Answer(text="word " * 9, hold=hold)) as shown:

        async def until_hinted_everywhere(words: str) -> None:
            for size in sizes:
                await shown.pilot.resize_terminal(*size)
                await until_hinted(shown, words)

        await until_hinted_everywhere("f2 sessions · f3 cache · f1 help")
        await shown.say("Hello?")
        await until_hinted_everywhere("f3 cache · esc stop")
        hold.set()
        await shown.until_answered()
        await until_hinted_everywhere("f2 sessions · f3 cache · f1 help")


async def test_the_keys_are_those_of_what_has_the_focus(tmp_path: Path) -> None:
    of_list = "enter open · delete · ctrl+r rename · ctrl+k pin · ctrl+e export · esc back"
    async with talk_window(tmp_path, size=(80, 24)) as shown:
        await shown.pilot.press("f2")
        await until_hinted(shown, of_list)
        await shown.pilot.press("ctrl+f")
        await until_hinted(shown, "enter open · esc back")
        await shown.pilot.press("escape", "f6")
        await until_hinted(shown, "↑↓ walk · enter actions · esc back")
        await shown.pilot.press("escape")
        await until_hinted(shown, "f1 help")
        await shown.say("/edit")
        await until_hinted(shown, "esc cancel")


async def test_in_a_narrow_terminal_the_way_back_is_the_last_key_to_go(tmp_path: Path) -> None:
    async with talk_window(tmp_path, size=(40, 18)) as shown:
        await shown.pilot.press("f2")
        await until_hinted(shown, "ctrl+e export · esc back")
        assert "ctx" not in last_line(shown)


async def test_own_keys_stand_in_the_last_line_and_keys_that_were_taken_do_not(tmp_path: Path) -> None:
    own_keys = Appearance(keys={"stop": "f12", "cache": "ctrl+k"})
    async with window(tmp_path, prepare=talk, appearance=own_keys) as shown:
        await until_hinted(shown, "f2 sessions · ctrl+k cache · f1 help")
        await shown.pilot.press("f2")
        await until_hinted(shown, "ctrl+r rename · ctrl+e export · f12 back")


async def test_a_click_on_a_key_is_as_good_as_the_key(tmp_path: Path) -> None:
    async with talk_window(tmp_path, size=(80, 24)) as shown:
        await click_hint(shown, "f1 help")
        await shown.until_on_top(HelpScreen)
        await shown.pilot.press("escape")
        await shown.until_back()
        await click_hint(shown, "f2 sessions")
        await shown.until(lambda: isinstance(shown.app.focused, SessionList))
        await until_hinted(shown, "esc back")
        await shown.pilot.press("down")
        await click_hint(shown, "ctrl+k")
        await shown.until_shown("★")
        await click_hint(shown, "esc back")
        await until_hinted(shown, "f1 help")
        assert shown.screen.prompt.has_focus
