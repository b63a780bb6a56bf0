"""Markdown for answers: streamed, never markup, cheap while a code fence is open."""

from asyncio import CancelledError
from contextlib import suppress
from functools import cache
from typing import ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading
from rich.markdown import Markdown as RichMarkdown
from textual.await_complete import AwaitComplete
from textual.content import Content
from textual.css.query import NoMatches
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.widgets import Label, Markdown
from textual.widgets._markdown import MarkdownFence
from textual.widgets.markdown import MarkdownStream

from kvchat.session.render.markdown_parser import answer_parser
from kvchat.ui.widgets.markdown_growth import GrowingBulletList, GrowingOrderedList, GrowingParagraph
from kvchat.ui.widgets.update_in_place import update_in_place


class CodeFence(MarkdownFence):
    """A code block that is drawn plain while it grows: to highlight every append is quadratic."""

    def highlight(  # type: ignore[override]
        self, code: str, language: str, ansi: bool = False, dark: bool = False
    ) -> Content:
        if isinstance(self._markdown, AnswerMarkdown) and self._markdown.is_streaming:
            return Content(code)
        return MarkdownFence.highlight(code, language, ansi=ansi, dark=dark)

    def set_content(self, content: Content) -> None:
        self._content = content
        with suppress(NoMatches):
            update_in_place(self.query_one("#code-content", Label), content)


class AnswerMarkdown(Markdown):
    """An answer's text. Between `begin` and `finish` it grows by `write`.

    Its blocks are placed as in a `Column`.

    Attributes:
        is_streaming: whether `write` still adds text.
    """

    BLOCKS = {
        **Markdown.BLOCKS,
        "fence": CodeFence,
        "code_block": CodeFence,
        "paragraph_open": GrowingParagraph,
        "bullet_list_open": GrowingBulletList,
        "ordered_list_open": GrowingOrderedList,
    }
    BULLETS = ["• ", "◦ ", "▪ ", "• ", "◦ "]

    def __init__(self, text: str = "") -> None:
        super().__init__(text, parser_factory=_parser, open_links=False)
        self.is_streaming = False
        self._stream: MarkdownStream | None = None

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        return super().arrange(Size(size.width, 0), optimal)

    def update(self, markdown: str) -> AwaitComplete:
        """Show another text; nothing is parsed or waited for where there is none, before or after."""
        if markdown or self.source or self.children:
            return super().update(markdown)
        return AwaitComplete.nothing()

    def begin(self) -> None:
        """Start to take text."""
        self.is_streaming = True
        self._stream = Markdown.get_stream(self)

    async def write(self, text: str) -> None:
        """Add text; ignored after `finish`, since a late piece must not end the interface."""
        if self._stream is not None:
            await self._stream.write(text)

    async def finish(self, full_text: str) -> None:
        """Stop taking text and show `full_text`, parsed as a whole: a streamed document can differ."""
        stream, self._stream = self._stream, None
        self.is_streaming = False
        if stream is not None:
            # A stream that never came to run ends with the cancellation by which it is stopped.
            with suppress(CancelledError):
                await stream.stop()
        await self.update(full_text)


class _LeftHeading(Heading):
    """A heading at the left edge, as the live widget draws it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class StillMarkdown(RichMarkdown):
    """An older answer as one renderable: a fifth of a live widget's cost."""

    elements: ClassVar = {**RichMarkdown.elements, "heading_open": _LeftHeading}

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.markup = text
        self.parsed = _parser().parse(text)


@cache
def _parser() -> MarkdownIt:
    """Return the one parser of all answers: to make one takes longer than to parse a piece of text."""
    parser = answer_parser()
    parser.parse(
        "*rules*"
    )  # they are put together at the first use, which is to be over before threads share it
    return parser
