"""An answer that grows is placed as a layout of the whole screen would place it, and with less work."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyte
import pytest
from textual._compositor import Compositor, CompositorMap, CompositorUpdate
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static
from textual.widgets._markdown import MarkdownBullet

from kvchat.session.tree import Finish, Role, SessionId, Turn, TurnId
from kvchat.ui.widgets.answer import AnswerView
from kvchat.ui.widgets.markdown_view import AnswerMarkdown, CodeFence
from tests.ui.harness import Window, window
from tests.ui.scripted import ScriptedChat

pytestmark = pytest.mark.tui

NUM_EARLIER = 12
BLANK = Turn(
    id=TurnId("new"),
    session_id=SessionId("s1"),
    parent_id=None,
    role=Role.ASSISTANT,
    text="",
    token_ids=(),
    finish=Finish.PARTIAL,
    created_at=0.0,
)
WORDS = "By train or by boat, **whichever** leaves first; 漢字は二つの幅, `code` and a long way to go. "
TEXTS = {
    "words": WORDS * 6,
    "paragraphs": f"{WORDS * 2}\n\n{WORDS}\n\n{WORDS * 3}",
    "code": f"{WORDS}\n\n```python\n"
    + "\n".join(f"x{i} = '漢字' * {i}" for i in range(9))
    + f"\n```\n{WORDS}",
    "wide code": "```\n" + "y" * 130 + "\nshort\n```\n",
    "bullets": "\n".join(f"- **{i}** {WORDS}" for i in range(4)) + "\n  - below\n  - it\n\nand on",
    "numbers": "\n".join(f"{i}. {WORDS[:40]}" for i in range(7, 13)) + "\n\n    ```\n    x = 1\n    ```\n",
    "heads": f"# One\n\n{WORDS}\n\n## Two\n\n> {WORDS}\n\n| a | b |\n|---|---|\n| 1 | 2 |\n| 漢 | 4 |\n",
    "emphasis that closes": "*" + WORDS.replace("*", "") * 2 + "* and __more__ of it",
}


def talk(chat: ScriptedChat) -> None:
    chat.add_session("Oslo", [(f"town {number}?", WORDS) for number in range(NUM_EARLIER)])


def pieces(text: str, length: int = 31) -> Iterator[str]:
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


async def begun(shown: Window) -> AnswerView:
    await shown.until(lambda: len(shown.transcript.views) == 2 * NUM_EARLIER)
    await shown.until(lambda: shown.screen.is_engine_ready)  # how much is kept is told once more then
    await shown.until_at_rest()
    shown.app.clear_notifications()
    view = await shown.transcript.begin_turn(None, BLANK)
    shown.transcript.anchor()
    await settled(shown, view)
    return view


async def add(shown: Window, view: AnswerView, piece: str) -> None:
    """Add a piece and wait until it is drawn."""
    await view.add_text(piece)
    await settled(shown, view)


async def settled(shown: Window, view: AnswerView) -> None:
    text = "".join(view._pieces)
    markdown = view.query_one(AnswerMarkdown)
    await shown.until(lambda: markdown.source == text and not markdown.lock.is_locked)
    await shown.pilot.pause()
    await shown.pilot.pause()


def seen(shown: Window) -> tuple[str, float]:
    return shown.conversation_text, shown.transcript.scroll_y


async def laid_out(shown: Window) -> tuple[str, float]:
    """Return what is seen once everything has been placed anew."""
    shown.screen.refresh(layout=True)
    await shown.pilot.pause()
    await shown.pilot.pause()
    return seen(shown)


@pytest.mark.parametrize("name", TEXTS)
async def test_an_answer_is_seen_as_after_a_layout_of_everything_while_it_grows_and_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also where it is read from above its end, and when it is opened again."""
    text = TEXTS[name]
    async with window(tmp_path, prepare=talk, initial="Oslo", size=(90, 24)) as shown:
        view = await begun(shown)
        drawn = Drawn(shown)
        monkeypatch.setattr(shown.app, "_display", drawn.display)
        shown.screen.refresh()
        await shown.pilot.pause()
        for number, piece in enumerate(pieces(text)):
            await add(shown, view, piece)
            await shown.until(lambda: drawn.text == shown.text)
            if number % 4 == 1:
                partly = seen(shown)
                assert partly == await laid_out(shown)
                await shown.until(lambda: drawn.text == shown.text)
            if number % 8 == 6:
                shown.transcript.scroll_to(y=shown.transcript.scroll_y - 3, animate=False, immediate=True)
        shown.transcript.anchor()
        ended = replace(BLANK, text=text, finish=Finish.COMPLETE)
        await view.finish(ended)
        await settled(shown, view)
        streamed = seen(shown)
        assert streamed == await laid_out(shown)
        await shown.transcript.show_turns((*shown.chat.open("Oslo").turns, ended))
        await shown.until(lambda: len(shown.transcript.views) == 2 * NUM_EARLIER + 1)
        await shown.until(lambda: seen(shown) == streamed)


async def test_a_piece_that_adds_no_line_lays_nothing_out_and_one_that_does_only_what_is_seen(
    tmp_path: Path,
) -> None:
    layouts: list[int] = []

    def count(screen: Screen[object]) -> None:
        layouts.append(len(screen._compositor.layers))

    async with window(tmp_path, prepare=talk, initial="Oslo", size=(90, 24)) as shown:
        view = await begun(shown)
        await add(shown, view, "By train")
        shown.screen.screen_layout_refresh_signal.subscribe(shown.transcript, count, immediate=True)
        for word in (" zig", " zag", " **zog**"):
            await add(shown, view, word)
        assert "By train zig zag zog" in shown.conversation_text
        assert layouts == []
        await add(shown, view, f" {WORDS} at last")
        assert "at last" in shown.conversation_text
        assert layouts
        assert max(layouts) < len(shown.screen.query("*")) / 2


async def test_a_layout_that_tells_widgets_their_size_is_not_followed_by_another(tmp_path: Path) -> None:
    layouts: list[int] = []
    async with window(tmp_path, prepare=talk, initial="Oslo", size=(90, 24)) as shown:
        await begun(shown)
        shown.screen.screen_layout_refresh_signal.subscribe(
            shown.transcript, lambda _: layouts.append(shown.transcript.virtual_size.height), immediate=True
        )
        before = shown.transcript.virtual_size.height
        await shown.transcript.page.mount(Static("one more\nand more"))
        shown.screen.refresh(layout=True)
        await shown.until(lambda: "and more" in shown.conversation_text)
        for _ in range(3):
            await shown.pilot.pause()
        assert layouts == [before + 2]


async def test_a_layout_behind_a_scroll_places_everything_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wholes: list[bool] = []
    arrange = Compositor._arrange_root

    def noted(
        compositor: Compositor, root: Widget, size: Size, visible_only: bool = True
    ) -> tuple[CompositorMap, set[Widget]]:
        wholes.extend([] if visible_only else [True])
        return arrange(compositor, root, size, visible_only)

    async with window(tmp_path, prepare=talk, initial="Oslo", size=(90, 24)) as shown:
        view = await begun(shown)
        shown.transcript.scroll_to(y=3, animate=False, immediate=True)
        await settled(shown, view)
        monkeypatch.setattr(Compositor, "_arrange_root", noted)
        height = shown.transcript.outer_size.height
        shown.screen.query_one("#heading", Static).styles.height = 3
        await shown.until(lambda: shown.transcript.outer_size.height == height - 1)
        await shown.pilot.pause()
        assert len(wholes) == 1


async def test_the_end_stays_on_screen_where_the_conversation_has_fewer_lines_and_more_again(
    tmp_path: Path,
) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo", size=(90, 24)) as shown:
        view = await begun(shown)
        await add(shown, view, "the very end")
        most = shown.transcript.region.height
        for num_lines in (3, 1, 0):
            shown.screen.draw_lines("#queue", ["queued"] * num_lines)
            height = most - num_lines
            await shown.until(lambda height=height: shown.transcript.region.height == height)
            await settled(shown, view)
            assert any("the very end" in line for line in shown.conversation_text.splitlines()[-4:])
            assert seen(shown) == await laid_out(shown)


async def test_a_list_that_grows_keeps_its_items(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo", size=(90, 24)) as shown:
        view = await begun(shown)
        await add(shown, view, "- one\n- two")
        before = list(view.query(MarkdownBullet))
        await add(shown, view, " and more\n- three\n  - below")
        assert len(view.query(MarkdownBullet)) == 4
        assert list(view.query(MarkdownBullet))[:2] == before
        assert "• two and more" in shown.conversation_text


async def test_an_open_fence_is_plain_until_the_answer_ends(tmp_path: Path) -> None:
    """To highlight all of it for every piece would be quadratic."""
    text = "```python\nimport os\n\ndef f(x):\n    return x\n```\n"
    async with window(tmp_path, prepare=talk, initial="Oslo", size=(90, 24)) as shown:
        view = await begun(shown)
        for piece in pieces(text, 7):
            await add(shown, view, piece)
            assert not any(fence._highlighted_code.spans for fence in view.query(CodeFence))
        assert "return x" in shown.conversation_text
        await view.finish(replace(BLANK, text=text, finish=Finish.COMPLETE))
        await shown.until(lambda: any(fence._highlighted_code.spans for fence in view.query(CodeFence)))


async def test_a_growing_answer_is_wrapped_anew_when_the_terminal_becomes_narrow_and_wide_again(
    tmp_path: Path,
) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo", size=(90, 24)) as shown:
        view = await begun(shown)
        for width in (60, 90, 60, 90):
            await add(shown, view, WORDS[:30])
            await shown.pilot.resize_terminal(width, 24)
            await settled(shown, view)
            partly = seen(shown)
            assert partly == await laid_out(shown)
