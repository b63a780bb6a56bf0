"""An answer's widget beside the window it is in."""

from dataclasses import replace

import pytest
from textual.app import App

from kvchat.session.tree import Finish
from kvchat.ui.widgets.answer import AnswerView, EndingLine, Reasoning
from tests.ui.records import ANSWER

pytestmark = pytest.mark.tui

THOUGHT = replace(ANSWER, reasoning="How would one go?")


async def test_an_answer_has_no_widgets_for_what_it_does_not_say_and_gets_them_with_it() -> None:
    app: App[None] = App()
    async with app.run_test() as pilot:
        view = AnswerView(ANSWER)
        await app.mount(view)
        assert not view.query("Reasoning, EndingLine")
        view.begin()
        view.add_reasoning("How would")
        view.add_reasoning(" one go?")
        view.finish(replace(THOUGHT, finish=Finish.INTERRUPTED))
        await pilot.pause()
        names = [type(child).__name__ for child in view.children if child.display]
        assert names == ["Reasoning", "StaticText", "EndingLine"]
        assert "4 words" in str(view.query_one(Reasoning).content)
        view.begin()
        assert not view.query_one(EndingLine).display
        view.finish(THOUGHT)
        assert not view.query_one(EndingLine).display


async def test_an_answer_that_has_left_the_window_takes_its_end_and_ends_nothing() -> None:
    app: App[None] = App()
    async with app.run_test() as pilot:
        view = AnswerView(replace(THOUGHT, finish=Finish.INTERRUPTED))
        await app.mount(view)
        await view.remove()
        view.add_reasoning("By train?")
        view.finish(THOUGHT)
        await pilot.pause()
        assert app.is_running
        assert view.turn == THOUGHT
