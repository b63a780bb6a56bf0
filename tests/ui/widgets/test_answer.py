"""An answer's widget beside the window it is in."""

from dataclasses import replace

import pytest
from textual.app import App

from kvchat.session.tree import Finish, Role, SessionId, Turn, TurnId
from kvchat.ui.widgets.answer import AnswerView

pytestmark = pytest.mark.tui

ANSWER = Turn(
    id=TurnId("t"),
    session_id=SessionId("s"),
    parent_id=None,
    role=Role.ASSISTANT,
    text="By train.",
    reasoning="How would one go?",
    token_ids=(1, 2),
    finish=Finish.COMPLETE,
    created_at=0.0,
)


async def test_an_answer_that_has_left_the_window_takes_its_end_and_ends_nothing() -> None:
    app: App[None] = App()
    async with app.run_test() as pilot:
        view = AnswerView(replace(ANSWER, finish=Finish.INTERRUPTED), is_live=False)
        await app.mount(view)
        await view.remove()
        view.add_reasoning("By train?")
        await view.finish(ANSWER)
        await pilot.pause()
        assert app.is_running
        assert view.turn == ANSWER
