"""An answer that grows is drawn as a layout of the whole screen would draw it, and with less work."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pyte
import pytest
from textual._compositor import CompositorUpdate
from textual.screen import Screen

from kvchat.session.tree import Finish, SessionId, TurnId
from kvchat.ui.widgets.answer import AnswerView
from kvchat.ui.widgets.answer_markdown import Line, StaticText
from kvchat.ui.widgets.composer import Composer
from tests.ui.harness import Window, window
from tests.ui.records import ANSWER
from tests.ui.scripted import ScriptedChat

pytestmark = pytest.mark.tui

NUM_EARLIER = 12
BLANK = replace(
    ANSWER, id=TurnId("new"), session_id=SessionId("s1"), text="", token_ids=(), finish=Finish.PARTIAL
)
WORDS = "By train or by boat, **whichever** leaves first; 漢字は二つの幅, `code` and a long way to go. "
TEXTS = {
    "paragraphs": f"{WORDS * 2}\n\n{WORDS}\n\n{WORDS * 3}",
    "code": f"{WORDS}\n\n```python\n"
    + "\n".join(f"x{i} = '漢字' * {i}" for i in range(9))
    + f"\n```\n{WORDS}\n\n```\n{'y' * 130}\nshort\n```\n",
    "lists": "\n".join(f"- **{i}** {WORDS}" for i in range(3))
    + "\n  - below\n  - it\n\nand on\n\n"
    + "\n".join(f"{i}. {WORDS[:40]}" for i in range(8, 12))
    + "\n\n    ```\n    x = 1\n    ```\n",
    "heads": f"# One\n\n{WORDS}\n\n## Two\n\n> {WORDS}\n\n| a | b |\n|---|---|\n| 1 | 2 |\n| 漢 | 4 |\n",
    "emphasis that closes": "*" + WORDS.replace("*", "") * 2 + "* and __more__ of it",
}


def long_talk(chat: ScriptedChat) -> None:
    chat.add_session("Oslo", [(f"town {number}?", WORDS) for number in range(NUM_EARLIER)])


def pieces(text: str, length: int = 37) -> Iterator[str]:
    yield from (text[at : at + length] for at in range(0, len(text), length))


class Drawn:
    """What a terminal shows that is sent only what the window says has changed."""

    def __init__(self, shown: Window) -> None:
        self._app = shown.app
        self._screen = pyte.Screen(*shown.app.size)
        self._stream = pyte.Stream(self._screen)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    def display(self, screen: Screen[object], update: object) -> None:
        if isinstance(update, CompositorUpdate) and not self._app._batch_count:
            self._stream.feed(update.render_segments(self._app.console).replace("\n", "\r\n"))


async def add(shown: Window, view: AnswerView, piece: str) -> None:
    """Add a piece and wait until it is drawn."""
    view.add_text(piece)
    await settled(shown)


async def settled(shown: Window) -> None:
    await shown.pilot.pause()
    await shown.pilot.pause()


@asynccontextmanager
async def growing(tmp_path: Path) -> AsyncIterator[tuple[Window, AnswerView]]:
    """Begin an answer below a conversation that is longer than the screen."""
    async with window(tmp_path, prepare=long_talk, initial="Oslo", size=(90, 24)) as shown:
        await shown.until(lambda: len(shown.transcript.views) == 2 * NUM_EARLIER)
        await shown.until(lambda: shown.screen.is_engine_ready)  # how much is kept is told once more then
        await shown.until_at_rest()
        shown.app.clear_notifications()
        view = await shown.transcript.begin_turn(None, BLANK)
        shown.transcript.anchor()
        await settled(shown)
        yield shown, view


def seen(shown: Window) -> tuple[str, float]:
    return shown.conversation_text, shown.transcript.scroll_y


async def laid_out(shown: Window) -> tuple[str, float]:
    """Return what is seen once everything has been placed anew."""
    shown.screen.refresh(layout=True)
    await settled(shown)
    return seen(shown)


@pytest.mark.parametrize("name", TEXTS)
async def test_an_answer_is_seen_as_after_a_layout_of_everything_while_it_grows_and_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also where it is read from above its end, and when it is opened again."""
    text = TEXTS[name]
    async with growing(tmp_path) as (shown, view):
        drawn = Drawn(shown)
        monkeypatch.setattr(shown.app, "_display", drawn.display)
        shown.screen.refresh()
        await shown.pilot.pause()
        for number, piece in enumerate(pieces(text)):
            await add(shown, view, piece)
            await shown.until(lambda: drawn.text == shown.text)
            if number % 4 == 1:
                assert seen(shown) == await laid_out(shown)
                await shown.until(lambda: drawn.text == shown.text)
            if number % 8 == 6:
                shown.transcript.scroll_to(y=shown.transcript.scroll_y - 3, animate=False, immediate=True)
        shown.transcript.anchor()
        ended = replace(BLANK, text=text, finish=Finish.COMPLETE)
        view.finish(ended)
        await settled(shown)
        streamed = seen(shown)
        assert streamed == await laid_out(shown)
        await shown.transcript.show_turns((*shown.chat.open("Oslo").turns, ended))
        await shown.until(lambda: len(shown.transcript.views) == 2 * NUM_EARLIER + 1)
        await shown.until(lambda: seen(shown) == streamed)


async def test_a_piece_that_adds_no_line_lays_nothing_out(tmp_path: Path) -> None:
    layouts: list[int] = []

    def count(screen: Screen[object]) -> None:
        layouts.append(1)

    async with growing(tmp_path) as (shown, view):
        await add(shown, view, "By train")
        shown.screen.screen_layout_refresh_signal.subscribe(shown.transcript, count, immediate=True)
        for word in (" zig", " zag", " **zog**"):
            await add(shown, view, word)
        assert "By train zig zag zog" in shown.conversation_text
        assert layouts == []
        await add(shown, view, f" {WORDS} at last")
        assert "at last" in shown.conversation_text
        assert layouts


async def test_the_end_stays_on_screen_where_there_are_fewer_lines_and_more_again(tmp_path: Path) -> None:
    async with growing(tmp_path) as (shown, view):
        await add(shown, view, "the very end")
        most = shown.transcript.region.height
        for num_lines in (3, 1, 0):
            shown.screen.query_one(Composer).draw_lines("queue", ["queued"] * num_lines)
            height = most - num_lines
            await shown.until(lambda height=height: shown.transcript.region.height == height)
            await settled(shown)
            assert any("the very end" in line for line in shown.conversation_text.splitlines()[-4:])
            assert seen(shown) == await laid_out(shown)


async def test_a_growing_answer_is_wrapped_anew_in_a_narrower_and_wider_terminal(tmp_path: Path) -> None:
    async with growing(tmp_path) as (shown, view):
        for width in (60, 90, 60, 90):
            await add(shown, view, WORDS[:30])
            await shown.pilot.resize_terminal(width, 24)
            await settled(shown)
            assert seen(shown) == await laid_out(shown)


async def test_only_the_last_block_of_an_answer_that_grows_is_rendered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[str] = []
    render = StaticText._render_lines

    def noted(text: StaticText, source: str, *, is_growing: bool = False) -> Sequence[Line]:
        rendered.append(source)
        return render(text, source, is_growing=is_growing)

    async with growing(tmp_path) as (shown, view):
        await add(shown, view, "# One\n\nBy train.\n\n- one\n- two")
        monkeypatch.setattr(StaticText, "_render_lines", noted)
        await add(shown, view, " and more\n- three")
        assert "• two and more" in shown.conversation_text
        assert rendered == ["- one\n- two and more\n- three"]


async def test_an_open_fence_is_plain_until_the_answer_ends(tmp_path: Path) -> None:
    """To highlight all of it for every piece would be quadratic."""
    text = "```python\nimport os\n\ndef f(x):\n    return x\n```\n"

    def num_styles(view: AnswerView) -> int:
        body = view.query_one(StaticText)
        strips = body.render_lines(body.outer_size.region)
        return len({segment.style.color for strip in strips for segment in strip if segment.style})

    async with growing(tmp_path) as (shown, view):
        await add(shown, view, text)
        plain = num_styles(view)
        assert "return x" in shown.conversation_text
        view.finish(replace(BLANK, text=text, finish=Finish.COMPLETE))
        await shown.until(lambda: num_styles(view) > plain)


async def test_a_click_on_a_link_copies_its_address(tmp_path: Path) -> None:
    async with growing(tmp_path) as (shown, view):
        await add(shown, view, "the [boat](https://example.org/fares) has cabins")
        for x in (7, 20):
            shown.app.clear_notifications()
            await shown.pilot.click(view.query_one(StaticText), offset=(x, 0))
            await shown.until(lambda: "link copied" in shown.text)
