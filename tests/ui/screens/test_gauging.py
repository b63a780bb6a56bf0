"""What formats lose, asked for in the window."""

from pathlib import Path

import pytest

from kvchat.app.interface_types import Appearance
from kvchat.text.gauge import report_lines
from kvchat.ui.widgets.cache.frontier_rows import BEATEN, GOOD, TAKEN
from tests.ui.harness import window
from tests.ui.widgets.cache.test_frontier_rows import STARTER, report

pytestmark = pytest.mark.tui


async def test_the_gauge_shows_what_formats_lose_on_this_conversation(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/gauge int3")
        await shown.until_shown("'int3' is unknown")
        assert shown.app.screen is shown.screen
        await shown.say("/gauge int4")
        await shown.until_shown("s1 on main: int4 lose little")
        await shown.pilot.press("escape")
        await shown.say("/gauge")
        await shown.until_shown("s1 on main: all lose little")


async def test_bytes_and_loss_are_drawn_in_one_colour_too_where_there_is_room(tmp_path: Path) -> None:
    async with window(tmp_path, size=(80, 24), appearance=Appearance(theme="ansi-dark")) as shown:
        shown.files.gauged = report(*STARTER)
        shown.files.more_words = "\n" + "\n".join(report_lines(shown.files.gauged, 0.99))
        await shown.say_and_wait("hello")
        await shown.say("/gauge")
        await shown.until_shown("bytes per token")
        assert f"{TAKEN} int2" in shown.text
        for name in ("k=int4,v=int2", "int4", "k=int8,v=int4", "int8"):
            assert f"{GOOD} {name}" in shown.text
        assert f"{BEATEN} fp8" in shown.text
        await shown.pilot.press(*["down"] * 20)
        await shown.until_shown("--cache-format int2 saves")
        assert all("perplexity" in line for line in shown.text.splitlines() if "of exact" in line)
        await shown.pilot.resize_terminal(40, 24)
        await shown.until_gone("bytes per token")
        await shown.until_shown("of exact")
        await shown.pilot.resize_terminal(120, 40)
        await shown.until_shown("bytes per token")
        await shown.pilot.press("escape")
        await shown.until_gone("bytes per token")
