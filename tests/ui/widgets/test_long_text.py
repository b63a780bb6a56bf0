"""A long text looks as Textual would draw it, and costs what is seen of it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Offset
from textual.selection import SELECT_ALL, Selection
from textual.strip import Strip
from textual.widgets import Static

from kvchat.ui.widgets.long_text import LongText, wrapped

LONG = "the river carried more water than in the year before, and the mill stood still. " * 200
WORDS = st.sampled_from(
    ["a", "of", "river", "water,", "x" * 30, "漢字は二つ", "é", "👩‍🚒", " ", "  ", "\t", "\n", ""]
)
TEXTS = st.lists(WORDS, max_size=40).map(" ".join) | st.lists(WORDS, max_size=40).map("".join)


@given(text=TEXTS, width=st.integers(1, 40))
@example(text="a of it", width=4)
@example(text="a river  of  water ", width=8)
@example(text=f"{'x' * 9} of {'x' * 21}  a", width=9)
def test_it_is_wrapped_as_textual_wraps_it(text: str, width: int) -> None:
    content = Content(text)
    assert [line.text for line in wrapped(content.plain, width)] == [
        line.plain for line in content.wrap(width)
    ]


class Beside(App[None]):
    """The same text twice, drawn here and by Textual."""

    CSS = "LongText, Static { padding: 0 2; border-left: outer red; } VerticalScroll { width: 1fr; }"

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ours, self.theirs = LongText(text), Static(Content(text), markup=False)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield self.ours
        with VerticalScroll():
            yield self.theirs

    def drawn(self, widget: Static) -> list[Strip]:
        return [strip.simplify() for strip in widget.render_lines(widget.outer_size.region)]


@pytest.mark.tui
@pytest.mark.parametrize("width", [30, 90])
@pytest.mark.parametrize(
    "selection",
    [None, SELECT_ALL, Selection(Offset(3, 1), Offset(60, 4)), Selection(Offset(40, 0), None)],
    ids=["nothing", "all", "some", "to the end"],
)
async def test_its_lines_are_those_of_textual_with_what_is_selected(
    width: int, selection: Selection | None
) -> None:
    text = f"{LONG[:300]}\n\n漢字は二つの幅 and\n  indented {LONG[:100]}\nlast"
    app = Beside(text)
    async with app.run_test(size=(width, 20)) as pilot:
        if selection is not None:
            app.screen.selections = {app.ours: selection, app.theirs: selection}
        await pilot.pause()
        assert app.drawn(app.ours) == app.drawn(app.theirs)
        assert app.ours.outer_size == app.theirs.outer_size
        if selection is not None:
            assert app.ours.get_selection(selection) == app.theirs.get_selection(selection)


@pytest.mark.tui
async def test_only_lines_that_are_seen_are_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    render_line = LongText.render_line

    def noted(text: LongText, y: int) -> Strip:
        rendered.append(y)
        return render_line(text, y)

    monkeypatch.setattr(LongText, "render_line", noted)
    app = Beside(LONG)
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        assert app.ours.outer_size.height > 100
        assert set(rendered) == set(range(10))
