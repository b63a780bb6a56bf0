"""What of a conversation is mounted, and where it stands, whatever else happens at that moment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from textual.geometry import Size

from kvchat.session.tree import Finish
from kvchat.ui.widgets.answer import AnswerView
from kvchat.ui.widgets.transcript import PAGE_TURNS, QuestionView
from tests.ui.harness import Window, window
from tests.ui.scripted import ScriptedChat

pytestmark = pytest.mark.tui

NUM = 30
LAST = f"Oslo {NUM - 1}?"


def two_long(chat: ScriptedChat) -> None:
    for title in ("Bergen", "Oslo"):
        chat.add_session(title, [(f"{title} {number}?", f"answer {number}") for number in range(NUM)])


async def opened(shown: Window) -> None:
    await shown.until(lambda: len(shown.transcript.views) == PAGE_TURNS)
    await shown.until(lambda: shown.transcript.views[0].region.height > 0)  # it is laid out
    await shown.pilot.pause()


@asynccontextmanager
async def long_window(tmp_path: Path) -> AsyncIterator[Window]:
    async with window(tmp_path, prepare=two_long, initial="Oslo") as shown:
        shown.app.animation_level = "none"
        await opened(shown)
        yield shown


def on_screen(shown: Window) -> list[str]:
    """The left of each line, where no notice lies above it."""
    return [line[:30].rstrip() for line in shown.conversation_text.splitlines()]


async def show_earlier(shown: Window) -> None:
    assert await shown.transcript.show_earlier()
    await shown.until(lambda: shown.transcript.views[0].region.height > 0)
    await shown.pilot.pause()


async def test_earlier_messages_come_a_few_at_a_time_and_move_nothing_that_is_on_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the middle nor at the end, and those that were there are not measured again."""
    measured: set[QuestionView] = set()
    measure = QuestionView.get_content_height

    def noted(view: QuestionView, container: Size, viewport: Size, width: int) -> int:
        measured.add(view)
        return measure(view, container, viewport, width)

    async with long_window(tmp_path) as shown:
        await shown.until(lambda: shown.screen.is_engine_ready)  # how much is kept is told once more then
        await shown.until_at_rest()
        shown.app.clear_notifications()
        await shown.until(lambda: not shown.screen.query("Toast"))
        at_end, mounted = on_screen(shown), set(shown.transcript.views)
        assert any(LAST in line for line in at_end)
        monkeypatch.setattr(QuestionView, "get_content_height", noted)
        await show_earlier(shown)
        await shown.until(lambda: shown.transcript.max_scroll_y == shown.transcript.scroll_y)
        assert on_screen(shown) == at_end
        assert measured
        assert not measured & mounted
        shown.transcript.scroll_to(y=5, animate=False)
        await shown.until(lambda: shown.transcript.scroll_y == 5)
        before = on_screen(shown)
        while shown.transcript.num_hidden:
            await show_earlier(shown)
            assert on_screen(shown) == before
        assert shown.questions == [f"Oslo {number}?" for number in range(NUM)]
        assert not await shown.transcript.show_earlier()


async def test_a_page_up_near_the_top_goes_a_whole_page_into_earlier_messages(tmp_path: Path) -> None:
    async with long_window(tmp_path) as shown:
        transcript = shown.transcript
        transcript.scroll_to(y=5, animate=False)
        await shown.until(lambda: transcript.scroll_y == 5)
        below = transcript.max_scroll_y - 5
        await shown.pilot.press("pageup")
        height = transcript.scrollable_content_region.height
        await shown.until(lambda: transcript.max_scroll_y - transcript.scroll_y == below + height)
        assert len(transcript.views) > PAGE_TURNS


async def test_earlier_messages_are_there_before_the_next_page_up_on_the_walk(tmp_path: Path) -> None:
    async with long_window(tmp_path) as shown:
        transcript = shown.transcript
        height = transcript.scrollable_content_region.height
        await shown.pilot.press("f6")
        while transcript.num_hidden:
            await shown.pilot.press("pageup")
            await shown.until(lambda: transcript.scroll_y >= 2 * height or not transcript.num_hidden)
        assert shown.questions == [f"Oslo {number}?" for number in range(NUM)]


async def test_earlier_messages_of_a_conversation_that_is_just_left_are_not_mounted(tmp_path: Path) -> None:
    async with long_window(tmp_path) as shown:
        other = shown.chat.open("Bergen")
        await asyncio.gather(
            shown.transcript.show_turns(other.turns, other.session), shown.transcript.show_earlier()
        )
        assert shown.questions[-1] == f"Bergen {NUM - 1}?"
        assert all(words.startswith("Bergen") for words in shown.questions)
        await opened(shown)
        assert shown.transcript.num_hidden == 2 * NUM - PAGE_TURNS
        assert shown.questions == [f"Bergen {number}?" for number in range(NUM)][-PAGE_TURNS // 2 :]


async def test_a_message_above_those_that_are_mounted_is_changed_in_its_place(tmp_path: Path) -> None:
    async with long_window(tmp_path) as shown:
        await shown.say(f"/edit {NUM - 4}")
        await shown.until(lambda: shown.screen.revisions.editing is not None)
        await shown.say(" And back?")
        await shown.until(lambda: shown.questions[-1] == "Oslo 4? And back?")
        assert shown.questions == ["Oslo 0?", "Oslo 1?", "Oslo 2?", "Oslo 3?", "Oslo 4? And back?"]


async def test_a_walk_that_another_conversation_ends_begins_anew(tmp_path: Path) -> None:
    async with long_window(tmp_path) as shown:
        await shown.pilot.press("f6", "up", "ctrl+n")
        await shown.until(lambda: shown.questions == [])
        assert shown.transcript.selected is None
        await shown.pilot.press("up", "enter", "down")
        assert (shown.app.is_running, shown.app.screen) == (True, shown.screen)


async def test_what_begins_while_the_window_closes_is_let_go(tmp_path: Path) -> None:
    async with long_window(tmp_path) as shown:
        question, answer = shown.chat.open("Bergen").turns[:2]
        shown.app.exit()
        await shown.transcript.begin_turn(question, answer)
        assert shown.questions[-1] == LAST


async def test_a_question_is_never_on_screen_without_the_answer_that_begins(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []

    def note(_screen: object) -> None:
        last = shown.transcript.views[-1]
        is_answer = isinstance(last, AnswerView)
        seen.append((shown.questions[-1], is_answer and last.region.height > 0))

    async with long_window(tmp_path) as shown:
        shown.screen.screen_layout_refresh_signal.subscribe(shown.transcript, note, immediate=True)
        question, answer = shown.chat.open("Bergen").turns[:2]
        await shown.transcript.begin_turn(question, replace(answer, text="", finish=Finish.PARTIAL))
        await shown.until(lambda: ("Bergen 0?", True) in seen)
        assert ("Bergen 0?", False) not in seen


async def test_what_is_left_is_taken_off_the_screen_at_once_and_removed_later(tmp_path: Path) -> None:
    async with long_window(tmp_path) as shown:
        before = shown.transcript.views
        other = shown.chat.open("Bergen")
        await shown.transcript.show_turns(other.turns[:2], other.session)
        assert shown.questions == ["Bergen 0?"]
        assert before[0].is_attached
        await shown.until(lambda: shown.conversation_text.count("?") == 1)
        await shown.until(lambda: not any(view.is_attached for view in before))
        assert len(shown.transcript.page.query("QuestionView, AnswerView")) == 2
