"""Two windows on one store: nothing is lost, and what the other one did is told."""

from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from kvchat.session.store import SessionStore
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.ui.widgets.session_list import SessionList
from tests.tiny_models import STARTER, write_model
from tests.ui.harness import Window
from tests.ui.stored import window_on

pytestmark = pytest.mark.tui


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    return ChatTemplate.from_dir(write_model(tmp_path_factory.mktemp("model"), STARTER))


async def say(shown: Window, text: str) -> None:
    num_before = len(shown.answers)
    await shown.say(text)
    await shown.until(lambda: len(shown.answers) > num_before and not shown.screen.turns.is_running)


async def test_two_windows_that_write_in_one_conversation_keep_both_answers(
    tmp_path: Path, template: ChatTemplate
) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(window_on(tmp_path, template))
        await say(first, "One")
        second = await stack.enter_async_context(window_on(tmp_path, template, "One"))
        await second.until(lambda: second.questions == ["One"])
        await say(first, "Two")
        await say(second, "Zwei")
        store = first.chat.store
        [summary] = store.list_sessions()
        paths = [
            [turn.text for turn in store.turns_to(branch.leaf_id)][::2]
            for branch in store.branches(summary.session.id)
        ]
        assert sorted(paths) == [["One", "Two"], ["One", "Zwei"]]


async def test_a_session_that_another_window_deleted_gives_the_message_back(
    tmp_path: Path, template: ChatTemplate
) -> None:
    async with window_on(tmp_path, template) as shown:
        await say(shown, "One")
        with closing(SessionStore(tmp_path / "sessions.db")) as other:
            other.delete_session(other.list_sessions()[0].session.id)
        await shown.say("Two")
        await shown.until(lambda: shown.screen.prompt.text == "Two")
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: shown.questions == [])
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.questions == ["Two"])
        assert len(shown.chat.store.list_sessions()) == 1


async def test_what_another_window_has_begun_is_listed_when_the_list_is_opened(
    tmp_path: Path, template: ChatTemplate
) -> None:
    async with window_on(tmp_path, template) as shown:
        with closing(SessionStore(tmp_path / "sessions.db")) as other:
            other.create_session(title="from elsewhere")
        await shown.pilot.press("f2")
        listed = shown.screen.query_one(SessionList)
        await shown.until(lambda: [line.name for line in listed.lines] == ["· from elsewhere"])
        assert listed.option_count == 1
