"""How the window begins: what its widgets are given once is what they would be given again."""

from pathlib import Path

import pytest
from textual.color import Color
from textual.dom import DOMNode

from kvchat.app.interface_types import Appearance
from kvchat.ui.widgets.welcome import things_to_try
from tests.ui.harness import window

pytestmark = pytest.mark.tui


@pytest.mark.parametrize("theme", ["", "nord", "ansi-dark"])
async def test_the_window_begins_with_the_styles_that_its_theme_gives(tmp_path: Path, theme: str) -> None:
    async with window(tmp_path, appearance=Appearance(theme=theme)) as shown:
        await shown.until(lambda: "Ask anything" in shown.text)
        app = shown.app
        assert app.theme == (theme or "kvchat")
        assert app.focused is shown.screen.prompt
        first = {node: _rules(node) for node in app.screen.walk_children(with_self=True)}
        app.refresh_css(animate=False)
        assert {node: _rules(node) for node in first} == first
        assert shown.screen.prompt.styles.background == Color.parse(app.theme_variables["background"])


def _rules(node: DOMNode) -> tuple[object, ...]:
    parts = {name: styles.base.get_rules() for name, styles in node._component_styles.items()}
    return node.styles.base.get_rules(), parts


@pytest.mark.parametrize("size", [(140, 45), (60, 18), (40, 12)])
async def test_a_click_puts_a_suggestion_into_the_prompt(tmp_path: Path, size: tuple[int, int]) -> None:
    async with window(tmp_path, size=size) as shown:
        words = things_to_try(shown.chat.model)[1]
        await shown.until_shown(words)
        line = next(y for y, line in enumerate(shown.text.splitlines()) if words in line)
        assert await shown.pilot.click(offset=(shown.text.splitlines()[line].index(words) + 3, line))
        await shown.until(lambda: shown.screen.prompt.text == words)
        await shown.pilot.press("enter")
        await shown.until_sent(words)
