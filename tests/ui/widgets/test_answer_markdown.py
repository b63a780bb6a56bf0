"""A still text looks as Textual would draw its Markdown, is rendered once, and can be selected."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from rich.markdown import MarkdownContext
from rich.style import Style
from textual.app import App, ComposeResult
from textual.color import Color
from textual.containers import VerticalScroll
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.selection import SELECT_ALL, Selection
from textual.strip import Strip
from textual.widgets import Static

from kvchat.ui.widgets.answer_markdown import AnswerMarkdown, StaticText

pytestmark = pytest.mark.tui

WORDS = "By train or by boat, **whichever** leaves first; 漢字は二つの幅, `code` and a long way to go. "
TEXT = f"""# One

{WORDS * 3}

- the train leaves at `08:05`
- the [boat](https://example.org) has *cabins*

> {WORDS}

| a | b |
|---|---|
| 1 | 漢 |

```python
x = 1

y = 2
```
"""


class Beside(App[None]):
    """The same Markdown twice, drawn here and by Textual."""

    CSS = ".still { padding: 0 1 1 2; } VerticalScroll { width: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self.ours = StaticText(TEXT)
        self.theirs = Static(AnswerMarkdown(TEXT, self), classes="still", markup=False)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield self.ours
        with VerticalScroll():
            yield self.theirs


@asynccontextmanager
async def drawn_text(said: str) -> AsyncIterator[tuple[Pilot[None], StaticText]]:
    app: App[None] = App()
    async with app.run_test(size=(40, 12)) as pilot:
        text = StaticText(said)
        await app.mount(text)
        await pilot.pause()
        yield pilot, text


def drawn(widget: Static) -> list[Strip]:
    """The lines, without the places in the text that are there for the mouse."""
    return [
        Strip(
            [
                segment._replace(style=segment.style and segment.style.clear_meta_and_links())
                for segment in strip
            ]
        ).simplify()
        for strip in widget.render_lines(widget.outer_size.region)
    ]


@pytest.mark.parametrize("width", [50, 160])
async def test_its_lines_are_those_of_textual(width: int) -> None:
    app = Beside()
    async with app.run_test(size=(width, 60)) as pilot:
        await pilot.pause()
        assert app.ours.outer_size == app.theirs.outer_size
        assert drawn(app.ours) == drawn(app.theirs)


async def test_it_is_rendered_once_for_each_width(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    on_text = MarkdownContext.on_text

    def noted(context: MarkdownContext, text: str, node_type: str) -> None:
        rendered.append(context.options.max_width)
        on_text(context, text, node_type)

    monkeypatch.setattr(MarkdownContext, "on_text", noted)
    async with drawn_text("By train.") as (pilot, _):
        assert len(rendered) == 1
        await pilot.resize_terminal(60, 24)
        await pilot.pause()
        assert len(set(rendered)) == len(rendered) == 2


async def test_a_part_of_it_is_selected_and_marked() -> None:
    async with drawn_text("By **train** or by boat, whichever leaves first.") as (pilot, text):
        part = Selection(Offset(3, 0), Offset(5, 1))
        pilot.app.screen.selections = {text: part}
        await pilot.pause()
        assert text.get_selection(part) == ("train or by boat, whichever leaves\nfirst", "\n")
        assert list(marked(pilot.app, text)) == ["train or by boat, whichever leaves", "first"]
        assert text.get_selection(SELECT_ALL) == ("By train or by boat, whichever leaves\nfirst.", "\n")


@pytest.mark.parametrize(
    "said", ["one\n\n```\nx = 1\n```", "|a|\n|-|\n|b|", "one\n\n---", "one\u2028two\x85three\n\nfour"]
)
async def test_each_line_is_selected_as_it_is_drawn_also_an_empty_one_at_the_end(said: str) -> None:
    async with drawn_text(said) as (_, text):
        lines = [text.render_line(y).text.rstrip() for y in range(text.size.height)]
        last = len(lines) - 1
        assert text.get_selection(Selection(Offset(0, last), None)) == (lines[last], "\n")
        assert text.get_selection(Selection(Offset(0, last), Offset(2, last))) == (lines[last][:2], "\n")
        assert text.get_selection(Selection(None, Offset(1, last))) == (
            "\n".join([*lines[:-1], lines[-1][:1]]),
            "\n",
        )


MARKS = "## Two\n\n> quoted\n\nwords `code` **most**\n\n```python\nx = 1\n```\n\n9. nine\n10. ten"


@pytest.mark.parametrize("theme", ["textual-dark", "solarized-light", "ansi-dark", "ansi-light"])
async def test_headings_and_quotes_do_not_look_like_errors_nor_code_like_text(theme: str) -> None:
    async with drawn_text(MARKS) as (pilot, text):
        pilot.app.theme = theme
        await pilot.pause()
        error = Color.parse(pilot.app.theme_variables["error"]).rich_color
        assert error not in {style.color for style in styles_of(text, "Two quoted")}
        code, words, most = (styles_of(text, word) for word in ("code", "words", "most"))
        assert len({*code, *words, *most}) == 3
        block = styles_of(text, "x = 1")
        assert all(style.bgcolor != words[0].bgcolor for style in block) or is_between_lines(text, "x = 1")


async def test_without_colours_code_stands_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with drawn_text(MARKS) as (_, text):
        assert [style.reverse for style in styles_of(text, "words code most")] == [None, True, None]
        assert is_between_lines(text, "x = 1")


async def test_the_numbers_of_a_list_have_a_dot() -> None:
    async with drawn_text(MARKS) as (_, text):
        lines = [strip.text for strip in text.render_lines(text.outer_size.region)]
        assert [line.strip() for line in lines[-2:]] == ["9. nine", "10. ten"]


def styles_of(text: StaticText, words: str) -> list[Style]:
    """Return the styles of the runs in which these words are."""
    runs = [run for strip in text.render_lines(text.outer_size.region) for run in strip]
    return [run.style for run in runs if run.style and run.text.strip() and run.text.strip() in words]


def is_between_lines(text: StaticText, code: str) -> bool:
    lines = [strip.text.strip() for strip in text.render_lines(text.outer_size.region)]
    at = lines.index(code)
    return set(lines[at - 1] + lines[at + 1]) == {"─"}


async def test_the_mouse_selects_words_of_it() -> None:
    async with drawn_text("By **train** or by boat.") as (pilot, _):
        await pilot.mouse_down(offset=(3, 0))
        await pilot.hover(offset=(7, 0))
        await pilot.mouse_up(offset=(7, 0))
        assert pilot.app.screen.get_selected_text() == "train"


def marked(app: App[None], text: StaticText) -> Iterator[str]:
    """Yield what stands out in each line."""
    background = app.screen.get_component_rich_style("screen--selection").bgcolor
    for strip in text.render_lines(text.outer_size.region):
        words = "".join(one.text for one in strip if one.style and one.style.bgcolor == background)
        if words:
            yield words.rstrip()
