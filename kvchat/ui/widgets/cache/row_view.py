"""Styled runs of text that cache displays are made of, and the widget that draws lines of them."""

from collections.abc import Mapping
from enum import StrEnum

from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.scroll_view import ScrollView
from textual.strip import Strip


class Look(StrEnum):
    """What a run of text is; a display gives each its colour."""

    LABEL = "label"
    VALUE = "value"
    FAINT = "faint"
    HEADING = "heading"
    OWN = "own"
    SHARED = "shared"
    KEPT = "kept"
    FREE = "free"
    DIFFERENT = "different"
    MOVED = "moved"


MARKS = {Look.SHARED: "▒", Look.OWN: "▓", Look.KEPT: "░", Look.FREE: "·"}

Run = tuple[str, Look]
Row = tuple[Run, ...]


def row_text(row: Row) -> str:
    return "".join(text for text, _ in row)


def row_content(row: Row, styles: Mapping[Look, str]) -> Content:
    """Return a row for a widget of text; a look that is not among the `styles` has none."""
    return Content("").join(Content.styled(text, styles.get(look, "")) for text, look in row)


def figure_row(label: str, value: str, width: int, look: Look = Look.FAINT) -> Row:
    return (label, look), (value.rjust(width - len(label)), Look.VALUE)


class RowView(ScrollView, can_focus=False):
    """Draws rows of runs; each look has the style of a component class."""

    COMPONENT_CLASSES = {f"cache--{look.value}" for look in Look}

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._styles: dict[Look, Style] = {}

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()

    def strip_of(self, row: Row) -> Strip:
        """Return a row as wide as the widget; an empty one is a blank line."""
        segments = [Segment(text, self._style(look)) for text, look in row if text]
        return (
            Strip(segments).adjust_cell_length(self.size.width, self.rich_style).apply_style(self.rich_style)
        )

    def _style(self, look: Look) -> Style:
        style = self._styles.get(look)
        if style is None:
            style = self._styles[look] = self.get_component_rich_style(f"cache--{look.value}", partial=True)
        return style
