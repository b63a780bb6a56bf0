"""How the window begins: what its widgets are given once is what they would be given again."""

from pathlib import Path

import pytest
from textual.color import Color
from textual.dom import DOMNode

from kvchat.app.interface_types import Appearance
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
