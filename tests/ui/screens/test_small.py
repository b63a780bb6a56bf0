"""The window at small sizes, and as it shrinks."""

from pathlib import Path

import pytest

from kvchat.ui.widgets.session_list import SessionList
from tests.ui.harness import talk_window, window

pytestmark = pytest.mark.tui


async def test_what_is_typed_is_seen_under_the_list_of_commands(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        for size in ((140, 45), (80, 24), (60, 18), (40, 12)):
            await shown.pilot.resize_terminal(*size)
            await shown.type("/")
            await shown.until_shown("▸ /")
            await shown.until_shown("› /")
            await shown.pilot.press("up", "up", "up")
            await shown.until_shown("▸ /")
            assert "› /" in shown.text
            await shown.pilot.press("ctrl+u")


async def test_a_list_that_was_beside_the_conversation_gives_way_when_only_one_has_room(
    tmp_path: Path,
) -> None:
    async with talk_window(tmp_path, size=(140, 24)) as shown:
        await shown.pilot.press("f2")
        await shown.until(lambda: isinstance(shown.app.focused, SessionList))
        await shown.pilot.resize_terminal(60, 18)
        await shown.until_shown("Seven hours or so.")
        await shown.type("On?")
        await shown.until_shown("› On?")


async def test_a_pane_asked_for_where_only_one_has_room_stays_until_something_is_typed(
    tmp_path: Path,
) -> None:
    async with talk_window(tmp_path, size=(60, 18)) as shown:
        for key, words, back in (("f2", "find ·", "esc back"), ("f3", "one cell =", "f3 back")):
            await shown.pilot.press(key)
            await shown.until_shown(words)
            await shown.until_shown(back)
            await shown.until_gone("Seven hours or so.")
            await shown.pilot.resize_terminal(58, 18)
            await shown.until_shown(words)
            await shown.type("x")
            await shown.until_shown("Seven hours or so.")
