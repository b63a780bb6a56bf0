"""Turns of one conversation are drawn into no other."""

import asyncio
from pathlib import Path

import pytest

from kvchat.app.turn_thread import TurnEnded
from kvchat.ui.state.conversation_tab import message_turn
from tests.ui.harness import window
from tests.ui.scripted import Answer, ScriptedChat

pytestmark = pytest.mark.tui


def talk(chat: ScriptedChat) -> None:
    chat.add_session("Oslo", [("By boat?", "By train.")])


async def test_an_answer_that_is_drawn_while_another_comes_stays_in_its_own(tmp_path: Path) -> None:
    async with window(tmp_path, Answer(text="Very well."), prepare=talk) as shown:
        turns, other = shown.screen.turns, shown.chat.open("Oslo")
        shown.screen.turn_produced = lambda: None  # type: ignore[method-assign]
        turns.add(message_turn("hello"))
        turns.start_next()
        await shown.until(lambda: any(isinstance(one, TurnEnded) for one in turns.tab.feed.waiting()))
        await asyncio.gather(turns.drain(), turns.show(other))
        assert turns.conversation is other
        assert (shown.questions, [view.turn.text for view in shown.answers]) == (["By boat?"], ["By train."])
