"""Markdown answer text in one widget, rendered once for each width and drawn by lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax
from rich.theme import Theme
from textual import events
from textual.app import App
from textual.color import Color
from textual.geometry import Size
from textual.message import Message
from textual.reactive import Reactive
from textual.selection import Selection
from textual.strip import Strip
from textual.widgets import Static

from kvchat.session.render.markdown_text import answer_parser

Line = Sequence[Segment]


@dataclass(frozen=True, kw_only=True)
class _Look:
    """Styles of text and of code. `ground`: behind code; None: a line above and below tells it apart."""

    theme: Theme
    code: ANSISyntaxTheme
    ground: str | None


def _look_of(app: App[Any]) -> _Look:
    """Return the look of answers in an app's colours, the same object as long as those stay."""
    variables = app.theme_variables
    colours = tuple(variables.get(name) or variables["foreground"] for name in _COLOURS)
    return _look(colours, is_lined=app.native_ansi_color or app.no_color, has_colours=not app.no_color)


_COLOURS = "primary", "secondary", "success", "faint", "surface"


@lru_cache(maxsize=8)
def _look(colours: Sequence[str], *, is_lined: bool, has_colours: bool) -> _Look:
    *texts, surface = (Color.parse(colour).rich_color for colour in colours)
    primary, secondary, success, faint = (Style(color=colour) for colour in texts)
    code = secondary + Style(bold=is_lined, reverse=not has_colours)
    styles = {
        "code": code if is_lined else code + Style(bgcolor=surface),
        "block_quote": faint + Style(italic=True),
        "item.bullet": primary,
        "item.number": primary,
        "hr": faint,
        "h1": primary + Style(bold=True, underline=True),
        "h2": primary + Style(bold=True),
        "h3": Style(bold=True),
        "h4": Style(bold=True, italic=True),
        "h6": Style(italic=True),
        "link": primary,
        "link_url": primary + Style(underline=True),
        "table.border": faint,
        "table.header": Style(bold=True),
    }
    tokens = {
        ("Comment",): faint + Style(italic=True),
        ("Keyword",): primary,
        ("Name", "Function"): Style(bold=True),
        ("Name", "Class"): Style(bold=True),
        ("Literal", "Number"): secondary,
        ("Literal", "String"): success,
    }
    return _Look(
        theme=Theme({f"markdown.{name}": style for name, style in styles.items()}),
        code=ANSISyntaxTheme(tokens),
        ground=None if is_lined else surface.name,
    )


class _LeftHeading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _NumberedItem(ListItem):
    """An item whose number has a dot behind it."""

    def render_number(
        self, console: Console, options: ConsoleOptions, number: int, last_number: int
    ) -> RenderResult:
        mark = f"{number}.".rjust(len(f" {last_number}.")) + " "
        style = console.get_style("markdown.item.number")
        narrower = options.update(width=options.max_width - len(mark))
        for line in console.render_lines(self.elements, narrower, style=self.style):
            yield Segment(mark, style)
            yield from line
            yield Segment.line()
            mark = " " * len(mark)


class _Fence(CodeBlock):
    """A code block in the colours of the theme."""

    def __init__(self, lexer_name: str, look: _Look) -> None:
        self.lexer_name = lexer_name
        self._look = look

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> "_Fence":
        assert isinstance(markdown, AnswerMarkdown)
        # While it grows it is not highlighted: to do so for every append is quadratic.
        name = "" if markdown.is_growing else token.info.partition(" ")[0]
        return cls(name or "text", markdown.look)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code, look = str(self.text).rstrip(), self._look
        edges = () if look.ground else (Rule(style="markdown.hr"),)
        yield from edges
        yield Syntax(
            code,
            self.lexer_name,
            theme=look.code,
            word_wrap=True,
            background_color=look.ground,
            padding=(1 - len(edges), 1),
        )
        yield from edges


class AnswerMarkdown(Markdown):
    """An answer's text, or a part that still grows, as a Rich renderable in the colours of an app."""

    elements: ClassVar = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "list_item_open": _NumberedItem,
        "fence": _Fence,
        "code_block": _Fence,
    }

    def __init__(self, text: str, app: App[Any], *, is_growing: bool = False) -> None:
        super().__init__("", hyperlinks=False)
        self.is_growing = is_growing
        self.markup = text
        self.parsed = _parser().parse(text)
        self.look = _look_of(app)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with console.use_theme(self.look.theme):
            yield from super().__rich_console__(console, options)


class StaticText(Static):
    """Markdown that costs what is seen of it; Textual renders it for its height and again to be drawn. Parts
    of it can be selected. Between `begin` and `finish` it grows by `write`: the last top-level block is
    rendered again, those before it are not.

    Attributes:
        is_streaming: whether `write` still adds text.
    """

    virtual_size = Reactive(Size(0, 0))
    """Not scrolled: nothing has to be placed again when it becomes another."""

    @dataclass
    class LinkClicked(Message):
        href: str

    def __init__(self, text: str) -> None:
        super().__init__("", markup=False, classes="still")
        self.is_streaming = False
        self._complete, self._growing = text, ""
        self._width = 0
        self._look: _Look | None = None
        self._complete_lines: Sequence[Line] = ()
        self._rendered: Sequence[Line] = ()

    @property
    def source(self) -> str:
        return self._complete + self._growing

    def begin(self) -> None:
        """Start to take text; the last block may go on."""
        self.is_streaming = True
        self._show(self._complete)

    def write(self, text: str) -> None:
        """Add text; ignored after `finish`."""
        if not self.is_streaming:
            return
        self._growing += text
        start = _last_block_start(self._growing)
        if start:
            done, self._growing = self._growing[:start], self._growing[start:]
            self._complete += done
            if self._width:
                self._complete_lines = _joined(self._complete_lines, self._render_lines(done))
        before = len(self._rendered)
        if self._width:
            self._rendered = self._with_growing()
        # The screen is laid out only where the number of lines changes.
        self.refresh(layout=len(self._rendered) != before or not self._width)

    def finish(self, full_text: str) -> None:
        """Stop taking text and show `full_text`, parsed as a whole: a streamed document can differ."""
        self.is_streaming = False
        self._show(full_text)

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

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None and (href := self._href_at(offset.x, offset.y)):
            self.post_message(self.LinkClicked(href))

    def _show(self, text: str) -> None:
        self._complete, self._growing, self._width = text, "", 0
        if self.is_streaming:
            start = _last_block_start(text + "\n")
            self._complete, self._growing = text[:start], text[start:]
        self.refresh(layout=True)

    def _lines(self, width: int) -> Sequence[Line]:
        look = _look_of(self.app)
        if (width, look) != (self._width, self._look):
            self._width, self._look = width, look
            self._complete_lines = self._render_lines(self._complete)
            self._rendered = self._with_growing()
        return self._rendered

    def _with_growing(self) -> Sequence[Line]:
        if not self._growing.strip():
            return self._complete_lines or ((),)
        return _joined(self._complete_lines, self._render_lines(self._growing, is_growing=True))

    def _render_lines(self, text: str, *, is_growing: bool = False) -> Sequence[Line]:
        if not text.strip():
            return ()
        markdown = AnswerMarkdown(text, self.app, is_growing=is_growing)
        options = self.app.console_options.update(width=self._width, highlight=False)
        segments = self.app.console.render(markdown, options)
        return tuple(Segment.split_and_crop_lines(segments, self._width, include_new_lines=False, pad=False))

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

    def _href_at(self, x: int, y: int) -> str | None:
        """Return the address of the link at a cell; a long one stands there in pieces."""
        lines = self._lines(self.size.width)
        line = lines[y] if y < len(lines) else ()
        end, shown = 0, ""
        for segment in line:
            end += segment.cell_length
            if x < end:
                shown = segment.text.strip() if self._is_link(segment.style) else ""
                break
        links = _links(_parser().parse(self.source)) if shown else ()
        return next((href for text, href in links if shown in text or shown in href), None)

    def _is_link(self, style: Style | None) -> bool:
        styles = _look_of(self.app).theme.styles
        links = (styles[f"markdown.{name}"] for name in ("link", "link_url"))
        return style is not None and any(style + link == style for link in links)


def _links(tokens: Sequence[Token]) -> Iterator[tuple[str, str]]:
    """Yield the text and the address of each link."""
    for token in tokens:
        href, text = None, ""
        for child in token.children or ():
            if child.type == "link_open":
                href, text = str(child.attrs.get("href", "")), ""
            elif child.type == "link_close" and href is not None:
                yield text, href
            else:
                text += child.content


def _last_block_start(text: str) -> int:
    """Return where the last top-level block begins; 0 while that is the only one. A block whose first line is
    incomplete does not count: what follows can make it part of the one before.
    """
    starts = [token.map[0] for token in _parser().parse(text) if token.level == 0 and token.map]
    lines = text.split("\n")
    if not starts or starts[-1] >= len(lines) - 1:
        return 0
    return sum(len(line) + 1 for line in lines[: starts[-1]])


def _joined(before: Sequence[Line], after: Sequence[Line]) -> Sequence[Line]:
    return (*before, (), *after) if before and after else (*before, *after)


def _within(line: Line, start: int, end: int) -> str:
    """Return what a line says from one place to another; -1: to its end."""
    text = "".join(segment.text for segment in line).rstrip()
    return text[start : None if end < 0 else end]


@cache
def _parser() -> MarkdownIt:
    """Return the one parser of all answers: to make one takes longer than to parse a piece of text."""
    parser = answer_parser()
    parser.parse("*rules*")  # put together at the first use, which is to be over before threads share it
    return parser
