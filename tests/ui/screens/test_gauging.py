"""What formats lose, asked for in the window."""

from pathlib import Path

import pytest

from kvchat.app.host import Appearance
from kvchat.text.gauge import report_lines
from kvchat.ui.widgets.cache.frontier_rows import BEATEN, GOOD, TAKEN
from tests.ui.harness import window
from tests.ui.scripted_files import ScriptedFiles
from tests.ui.widgets.cache.test_frontier_rows import STARTER, report

pytestmark = pytest.mark.tui


async def test_the_gauge_shows_what_formats_lose_on_this_conversation(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/gauge int4")
        await shown.until_shown("on main: int4 lose little")
        await shown.pilot.press("escape")
        await shown.say("/gauge")
        await shown.until_shown("on main: all lose little")
        assert "s1 on main: all lose little" in shown.text


async def test_without_a_conversation_and_with_a_wrong_format_it_says_so(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/gauge")
        await shown.until_shown("nothing has been said here yet")
        await shown.say_and_wait("hello")
        await shown.say("/gauge int3")
        await shown.until_shown("'int3' is unknown")
        assert shown.app.screen is shown.screen


def measured(files: ScriptedFiles) -> None:
    files.gauged = report(*STARTER)
    files.more_words = "\n" + "\n".join(report_lines(files.gauged, 0.99))


@pytest.mark.parametrize("size", [(80, 24), (150, 40)])
async def test_bytes_and_loss_are_drawn_with_the_recommended_format_marked(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with window(tmp_path, size=size) as shown:
        measured(shown.files)
        await shown.say_and_wait("hello")
        await shown.say("/gauge")
        await shown.until_shown("bytes of a token")
        assert f"{TAKEN} int2" in shown.text
        for name in ("k=int4,v=int2", "int4", "k=int8,v=int4", "int8"):
            assert f"{GOOD} {name}" in shown.text
        assert f"{BEATEN} fp8" in shown.text
        await shown.pilot.press(*["down"] * 20)
        await shown.until_shown("--cache-format int2 saves")
        assert all("perplexity" in line for line in shown.text.splitlines() if "of exact" in line)
        await shown.pilot.press("escape")
        await shown.until_gone("bytes of a token")


async def test_marks_tell_formats_apart_in_one_colour(tmp_path: Path) -> None:
    async with window(tmp_path, size=(80, 24), appearance=Appearance(theme="ansi-dark")) as shown:
        measured(shown.files)
        await shown.say_and_wait("hello")
        await shown.say("/gauge")
        await shown.until_shown("bytes of a token")
        assert {TAKEN, GOOD, BEATEN} <= set(shown.text)


async def test_a_plot_follows_the_terminal_and_goes_where_there_is_no_room(tmp_path: Path) -> None:
    async with window(tmp_path, size=(80, 24)) as shown:
        measured(shown.files)
        await shown.say_and_wait("hello")
        await shown.say("/gauge")
        await shown.until_shown("bytes of a token")
        await shown.pilot.resize_terminal(40, 24)
        await shown.until_gone("bytes of a token")
        await shown.until_shown("lose little")
        await shown.pilot.resize_terminal(120, 40)
        await shown.until_shown("bytes of a token")
        assert shown.app.screen.query_one("#gauge-plot").display
