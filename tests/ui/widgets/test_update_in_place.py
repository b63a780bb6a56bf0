"""A text that takes another's place is as high as it is."""

from fractions import Fraction

import pytest
from textual.app import App, ComposeResult
from textual.content import Content
from textual.geometry import Size
from textual.widgets import Static

from kvchat.ui.widgets.update_in_place import update_in_place

pytestmark = pytest.mark.tui

WIDTH = 20


class Early(Static):
    """Measured by a layout before it is mounted, and given its text when it is."""

    heights: tuple[int, ...] = ()

    def on_mount(self) -> None:
        assert not self.is_mounted
        self.measure()
        update_in_place(self, Content("one\ntwo"))
        self.measure()

    def measure(self) -> None:
        size, one = Size(WIDTH, 5), Fraction(1)
        self.heights = *self.heights, int(self._get_box_model(size, size, one, one).height)


class Shown(App[None]):
    CSS = "Early { height: auto; }"

    def compose(self) -> ComposeResult:
        yield Early("")


async def test_a_text_that_is_given_at_mounting_is_not_as_high_as_what_a_layout_saw_before() -> None:
    app = Shown()
    async with app.run_test(size=(WIDTH, 5)):
        assert app.query_one(Early).heights == (1, 2)
