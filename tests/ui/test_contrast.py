"""All text of the window can be read in all themes: it differs enough from what it stands on."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from rich.color import Color
from rich.style import Style

from kvchat.engine.api.engine_phase import EnginePhase
from tests.ui.harness import Window, talk, talk_window, window
from tests.ui.screens.test_inspector import engine_with_blocks
from tests.ui.scripted import Answer
from tests.ui.widgets.cache.test_frontier_rows import STARTER, report

pytestmark = pytest.mark.tui

TEXT, CELLS = 4.5, 3.0
"""Least contrasts, as WCAG 2 has them for text and for what carries a meaning without being text."""
SOME = "kvchat", "solarized-light", "nord"
"""Themes for screens in which no other colours are: ours, and two whose colours are near each other."""
LINES = re.compile("[\\s─-╿▀-▏▔▕🔎]*")
CELL = re.compile("[░▒▓█·]*")
MARKDOWN = """# One
## Two
### Three
Words, *more*, **most**, ~~less~~, `code` and [a link](https://example.org).

> said by others

1. first
- next

|a|b|
|-|-|
|1|2|

```python
def main() -> None:  # a comment
    print("text", 12)
```
"""


def weak(shown: Window) -> Iterator[str]:
    """Yield what is drawn with too little contrast."""
    screen = shown.app.screen
    area = screen.children[0].region if screen.is_modal else screen.region
    for strip in screen._compositor.render_strips()[area.y : area.bottom]:
        for text, style, _ in strip.crop(area.x, area.right):
            least = CELLS if CELL.fullmatch(text.strip()) else TEXT
            if style is not None and not LINES.fullmatch(text) and (found := contrast(style)) < least:
                yield f"{found:.2f} {text.strip()!r} {style}"


def contrast(style: Style) -> float:
    front, back = (style.bgcolor, style.color) if style.reverse else (style.color, style.bgcolor)
    assert front is not None
    assert back is not None
    light, dark = sorted((luminance(front), luminance(back)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: Color) -> float:
    """Return the relative luminance of WCAG 2."""
    parts = (part / 255 for part in colour.get_truecolor())
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


async def stops(shown: Window) -> AsyncIterator[tuple[str, ...]]:
    """Walk through what the window can show, each time with the themes to look at it in."""
    press = shown.pilot.press
    everywhere = tuple(name for name, theme in shown.app.available_themes.items() if not theme.ansi)
    await shown.say_and_wait("go on")
    shown.screen.tell("told", title="title")
    shown.screen.warn("warned")
    shown.screen.fail("failed")
    await shown.until(lambda: len(shown.told) == 3)
    await shown.type("/")
    await shown.until_shown("▸ /")
    yield everywhere
    shown.app.clear_notifications()
    await press("backspace", "f6")
    yield SOME
    await press("up", "enter")
    yield SOME
    await press("escape", "escape", "f2")
    yield SOME
    await shown.say("/tokens")
    await shown.until_shown("75.00%")
    yield SOME
    await press("escape", "f7", "right", "right")
    await shown.until_shown("64–127")
    yield SOME
    await press("escape")
    shown.files.gauged = report(*STARTER)
    await shown.say("/gauge")
    await shown.until_shown("fp8")
    yield SOME
    await press("escape")
    await shown.say("/retry 2")
    await shown.until_shown("enter takes it")
    yield SOME
    await press("escape", "f1")
    yield SOME
    await press("escape", "ctrl+p")
    await shown.until_shown("/export")
    yield SOME
    await press("escape")
    shown.engine.phase = EnginePhase.FAILED
    await shown.until_shown("✗")
    yield SOME


async def test_every_text_differs_enough_from_its_ground_in_every_theme(tmp_path: Path) -> None:
    answer = Answer(text=MARKDOWN, reasoning="thinking")
    async with window(tmp_path, answer, engine=engine_with_blocks(), prepare=talk, initial="Oslo") as shown:
        async for themes in stops(shown):
            for name in themes:
                shown.app.theme = name
                await shown.pilot.pause(0)
                assert not list(weak(shown)), f"{name}:\n{shown.text}"
            shown.app.theme = "kvchat"


async def test_a_chosen_message_and_the_ends_of_tokens_are_seen_without_colours(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        await shown.pilot.press("f6", "up")
        await shown.until_shown("█ How long?")
        assert "▌ By boat?" in shown.text
        await shown.say("/tokens")
        await shown.until_shown("75.00%")
        flow = shown.app.screen.query_one("#tokens-flow")
        (line,) = flow.render_lines(flow.outer_size.region)
        looks = [(run.style.reverse, run.style.underline) for run in line if run.style and run.text.strip()]
        assert looks == [(True, None), (None, True), (None, None), (None, True)]


async def test_dialogs_fit_a_small_terminal_with_their_keys(tmp_path: Path) -> None:
    async with talk_window(tmp_path, size=(40, 12)) as shown:
        await shown.pilot.press("f6", "up", "enter")
        await shown.until_shown("change it")
        await shown.until_told("tokens cached")  # a notice would lie over the lines
        shown.app.clear_notifications()
        await shown.until_shown("open in $EDITOR")
        assert "enter or the letter" in shown.text
        await shown.pilot.press("escape", "escape")
        await shown.say("/undo")
        await shown.until_shown("enter yes · esc no")
        await shown.pilot.press("escape")
        await shown.say("/retry 3")
        await shown.until_shown("answer number 1")
        await shown.pilot.press("right")
        await shown.until_shown("answer number 2")
        await shown.pilot.press("escape", "f1")
        await shown.until_told("the answer stays")
        shown.app.clear_notifications()
        await shown.until_shown("again:")
        lines = shown.text.splitlines()
        first, later = (next(line for line in lines if word in line) for word in ("send", "again:"))
        assert first.index("send") == later.index("prompt;")
