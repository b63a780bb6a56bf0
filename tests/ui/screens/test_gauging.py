"""What formats lose, asked for in the window."""

from pathlib import Path

import pytest

from tests.ui.harness import window

pytestmark = pytest.mark.tui


async def test_the_gauge_shows_what_formats_lose_on_this_conversation(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/gauge int4")
        await shown.until_shown("on main: int4 lose little")
        await shown.pilot.press("escape")
        await shown.say("/gauge")
        await shown.until_shown("on main: all lose little")


async def test_without_a_conversation_and_with_a_wrong_format_it_says_so(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/gauge")
        await shown.until_shown("nothing has been said here yet")
        await shown.say_and_wait("hello")
        await shown.say("/gauge int3")
        await shown.until_shown("'int3' is unknown")
