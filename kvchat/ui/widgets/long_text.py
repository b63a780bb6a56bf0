"""A plain text of which only the lines are rendered that are seen."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from textual.content import Content
from textual.geometry import Size
from textual.strip import Strip
from textual.style import Style
from textual.widgets import Static

_TAB_SIZE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedLine:
    """A line on the screen: `text` stands in the text's line `number`, from its character `start` on."""

    number: int
    start: int
    text: str


class LongText(Static):
    """A text that stays as it is. It is wrapped once for each width and then costs what is seen of it, where
    Textual wraps and renders all of a text for any line of it.
    """

    def __init__(self, text: str, *, classes: str | None = None) -> None:
        content = Content(text)
        super().__init__(content, markup=False, classes=classes)
        self._text = content.plain
        self._wrapped: tuple[int, Sequence[WrappedLine]] = 0, ()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines(width))

    def render_line(self, y: int) -> Strip:
        width, style = self.size.width, self.visual_style
        lines = self._lines(width)
        if y >= len(lines):
            return Strip.blank(width, style.rich_style)
        x, segments = lines[y].start, []
        for text, text_style in self._content(lines[y]).render(style, end=""):
            segments.append(Segment(text, (style + text_style).rich_style_with_offset(x, lines[y].number)))
            x += len(text)
        return Strip(segments)

    def _lines(self, width: int) -> Sequence[WrappedLine]:
        if width != self._wrapped[0]:
            self._wrapped = width, tuple(wrapped(self._text, width))
        return self._wrapped[1]

    def _content(self, line: WrappedLine) -> Content:
        """Return a line, with what is selected of it marked."""
        content, selection = Content(line.text), self.text_selection
        span = selection.get_span(line.number) if selection is not None else None
        if span is None:
            return content
        start = max(0, span[0] - line.start)
        end = len(line.text) if span[1] < 0 else max(0, span[1] - line.start)
        marked = Style.from_styles(self.screen.get_component_styles("screen--selection"))
        return content.stylize(marked, start, end)


def wrapped(text: str, width: int) -> Iterator[WrappedLine]:
    """Yield the lines that Textual makes of a text; none where they have no width."""
    if width <= 0:
        return
    for number, line in enumerate(text.split("\n")):
        line = line.expandtabs(_TAB_SIZE)
        start = 0
        for end in _breaks(line, width):
            yield WrappedLine(number=number, start=start, text=_cut(line[start:end].rstrip(), width))
            start = end
        yield WrappedLine(number=number, start=start, text=_cut(line[start:], width))


def _breaks(line: str, width: int) -> list[int]:
    """Return at which characters a line is broken. Where each character is one cell this is a tenth of the
    work that Rich has with every word.
    """
    if not (line.isascii() and line.isprintable()) or line.startswith(" "):
        return list(_word_breaks(line, width))
    breaks, start, end = [], 0, len(line.rstrip(" "))
    while end - start > width:
        start = line.rfind(" ", start, start + width + 1)
        if start < 0:  # a word that is longer than a line
            return list(_word_breaks(line, width))
        while line[start] == " ":
            start += 1
        breaks.append(start)
    return breaks


def _word_breaks(line: str, width: int) -> Iterator[int]:
    """Yield where a line of any characters is broken: between words, or within one longer than a line."""
    used = 0
    for match in re.finditer(r"\s*\S+\s*", line):
        word, start = match.group(), match.start()
        num_cells = cell_len(word.rstrip())
        if used + num_cells <= width:
            used += cell_len(word)
        elif num_cells <= width:
            if start:
                yield start
            used = cell_len(word)
        else:
            parts = chop_cells(word, width)
            for part in parts:
                if start:  # a first part is empty where not even one character fits
                    yield start
                start += len(part)
            used = cell_len(parts[-1])


def _cut(part: str, width: int) -> str:
    if part.isascii() and len(part) <= width:
        return part
    return Content(part).truncate(width).rstrip_end(width).plain
