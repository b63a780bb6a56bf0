"""Answers side by side, and the keys pressed beside them."""

from pathlib import Path
from threading import Event

import pytest

from kvchat.ui.screens.compare import CompareScreen
from tests.ui.harness import talk_window

pytestmark = pytest.mark.tui


async def test_answers_are_compared_and_one_is_taken(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        await shown.say("/retry 3")
        await shown.until_shown("enter takes it")
        assert all(f"answer number {number}" in shown.text for number in (1, 2, 3))
        assert "once for all 3 answers" in shown.text
        assert "alike" not in shown.text
        await shown.pilot.press("2", "enter")
        await shown.until(lambda: [view.turn.text for view in shown.answers][-1] == "answer number 2")
        assert shown.chat.open("Oslo", "main").turns[-1].text == "Seven hours or so."


async def test_answers_that_are_all_alike_are_said_to_be_unless_they_were_stopped(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        shown.chat.variants.answer = "Always this."
        await shown.say("/retry 2")
        await shown.until_shown("all 2 alike, by chance")
        await shown.pilot.press("escape")
        await shown.until_back()
        shown.chat.variants.hold = Event()
        await shown.say("/retry 2")
        await shown.until_shown("esc stops them all")
        await shown.pilot.press("escape")
        shown.chat.variants.hold.set()
        await shown.until_shown("esc keeps the old answer")
        assert "alike" not in shown.text
        await shown.pilot.press("escape")
        await shown.until_back()
        assert [view.turn.text for view in shown.answers][-1] == "Seven hours or so."


async def test_a_text_begun_beside_the_answers_keeps_its_keys_until_one_is_taken(tmp_path: Path) -> None:
    async with talk_window(tmp_path, size=(60, 24)) as shown:
        await shown.say("/retry 3")
        await shown.until_shown("enter takes it")
        await shown.type("at 27:15x")
        await shown.until_shown("you are typing the next")
        await shown.pilot.press("backspace", "left", "left", "3", "enter")
        await shown.until_shown("esc goes back to the answers · not sent: take one first")
        await shown.type("y")
        await shown.until_shown("you are typing the next")
        assert (shown.chat.sent, shown.screen.prompt.text) == ([], "at 27:3y15")
        await shown.pilot.press("escape", "2")
        await shown.until_shown("▸ 2")
        await shown.until_on_top(CompareScreen)
        await shown.pilot.press("enter")
        await shown.until_back()
        await shown.until(lambda: shown.screen.turns.conversation.branch.name == "taken")
        await shown.pilot.press("enter")
        await shown.until_sent("at 27:3y15")


async def test_what_is_typed_beside_answers_that_are_written_is_seen(tmp_path: Path) -> None:
    async with talk_window(tmp_path, size=(60, 18)) as shown:
        shown.chat.variants.hold = Event()
        await shown.say("/retry 3")
        await shown.until_shown("esc stops them all")
        assert "›" not in shown.text
        await shown.type("seen")
        await shown.until_shown("› seen")
        await shown.pilot.press("left", "left", "backspace")
        await shown.until_shown("› sen")
        await shown.type("x" * 100 + "y")
        await shown.until_shown("xyen")
        shown.chat.variants.hold.set()
        await shown.until(lambda: bool(shown.app.screen.answers))
        assert shown.screen.prompt.text == f"s{'x' * 100}yen"


async def test_only_a_few_answers_can_be_compared(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        for number in ("0", "9", "300"):
            shown.app.clear_notifications()
            await shown.say(f"/retry {number}")
            await shown.until(lambda: bool(shown.told))
            assert shown.app.screen is shown.screen
