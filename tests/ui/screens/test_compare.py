"""Answers side by side, and the keys pressed beside them."""

from pathlib import Path

import pytest

from tests.ui.harness import window
from tests.ui.scripted import ScriptedChat

pytestmark = pytest.mark.tui


def talk(chat: ScriptedChat) -> None:
    chat.add_session("Oslo", [("How long?", "Seven hours or so.")])


@pytest.mark.parametrize("size", [(150, 40), (60, 24)])
async def test_enter_behind_a_text_says_what_to_do_before_it_can_be_sent(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo", size=size) as shown:
        await shown.until(lambda: shown.questions == ["How long?"])
        await shown.say("/retry 2")
        await shown.until_shown("enter takes it")
        await shown.type("x")
        await shown.until_shown("you are typing the next")
        await shown.pilot.press("enter")
        await shown.until_shown("esc goes back to the answers · not sent: take one first")
        await shown.type("y")
        await shown.until_shown("you are typing the next")
        assert (shown.chat.sent, shown.screen.prompt.text) == ([], "xy")
        await shown.pilot.press("escape", "enter")
        await shown.until(lambda: shown.app.screen is shown.screen)
        await shown.until(lambda: shown.screen.turns.conversation.branch.name == "taken")
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.chat.sent == ["xy"])
