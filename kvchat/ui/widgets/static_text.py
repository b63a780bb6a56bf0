"""An answer's text that stays as it is, in one widget."""

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.selection import Selection
from textual.strip import Strip
from textual.widgets import Static

from kvchat.ui.widgets.markdown_view import StillMarkdown

Line = Sequence[Segment]


class StaticText(Static):
    """Markdown that is rendered once for each width and then costs what is seen of it; Textual renders it for
    its height and again to be drawn. Parts of it can be selected, as of a live text.
    """

    def __init__(self, text: str) -> None:
        super().__init__("", markup=False, classes="still")
        self._markdown = StillMarkdown(text) if text.strip() else None
        self._rendered: tuple[int, Sequence[Line]] = 0, ()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines(width))

    def render_line(self, y: int) -> Strip:
        width, style = self.size.width, self.visual_style.rich_style
        lines = self._lines(width)
        if y >= len(lines):
            return Strip.blank(width, style)
        return Strip(Segment.apply_style(self._marked(lines[y], y), style)).apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        spans = ((selection.get_span(y), line) for y, line in enumerate(self._lines(self.size.width)))
        return "\n".join(_within(line, *span) for span, line in spans if span is not None), "\n"

    def _lines(self, width: int) -> Sequence[Line]:
        if width != self._rendered[0]:
            self._rendered = width, self._render_lines(width)
        return self._rendered[1]

    def _render_lines(self, width: int) -> Sequence[Line]:
        if self._markdown is None:
            return ((),)
        options = self.app.console_options.update(width=width, highlight=False)
        segments = self.app.console.render(self._markdown, options)
        return tuple(Segment.split_and_crop_lines(segments, width, include_new_lines=False, pad=False))

    def _marked(self, line: Line, y: int) -> Line:
        """Return a line, with what is selected of it marked."""
        selection = self.text_selection
        span = selection.get_span(y) if selection is not None else None
        if span is None:
            return line
        marked = self.screen.get_component_rich_style("screen--selection")
        segments, at = [], 0
        for text, style, _ in line:
            start = max(0, span[0] - at)
            end = len(text) if span[1] < 0 else max(start, span[1] - at)
            segments += [
                Segment(text[:start], style),
                Segment(text[start:end], (style or Style.null()) + marked),
                Segment(text[end:], style),
            ]
            at += len(text)
        return [segment for segment in segments if segment.text]


def _within(line: Line, start: int, end: int) -> str:
    """Return what a line says from one place to another; -1: to its end."""
    text = "".join(segment.text for segment in line).rstrip()
    return text[start : None if end < 0 else end]
