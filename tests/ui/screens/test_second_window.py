"""Two windows on one store: nothing is lost, and what the other one did is told."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from kvchat.session.store import SessionStore
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.ui.widgets.session_list import SessionList
from tests.ui.harness import Window
from tests.ui.stored import window_on

pytestmark = pytest.mark.tui


async def say(shown: Window, text: str) -> None:
    num_before = len(shown.answers)
    await shown.say(text)
    await shown.until(lambda: len(shown.answers) > num_before and not shown.screen.turns.is_running)


@asynccontextmanager
async def two_windows(home: Path, template: ChatTemplate) -> AsyncIterator[tuple[Window, Window]]:
    """Open two windows on a conversation of one question."""
    async with window_on(home, template) as first:
        await say(first, "One")
        async with window_on(home, template, "One") as second:
            await second.until(lambda: second.questions == ["One"])
            yield first, second


async def test_a_session_that_another_window_deleted_is_left_and_the_message_stays(
    tmp_path: Path, template: ChatTemplate
) -> None:
    async with window_on(tmp_path, template) as shown:
        await say(shown, "One")
        await shown.type("Two")
        with closing(SessionStore(tmp_path / "sessions.db")) as other:
            other.delete_session(other.list_sessions()[0].session.id)
        await shown.until_told("Another window has deleted this conversation")
        await shown.until(lambda: shown.questions == [])
        assert shown.screen.prompt.text == "Two"
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.questions == ["Two"])
        assert len(shown.chat.store.list_sessions()) == 1


async def test_a_branch_that_another_window_gave_a_name_by_its_first_message_stays_on_screen(
    tmp_path: Path, template: ChatTemplate
) -> None:
    async with two_windows(tmp_path, template) as (first, second):
        await first.say("/fork")
        await first.until(lambda: first.screen.turns.conversation.branch.name == "main-2")
        await second.say("/switch main-2")
        await second.until(lambda: second.screen.turns.conversation.branch.name == "main-2")
        first.engine.held_after = 1
        await first.say("Tell me more")
        await second.until_shown("! Another window is being answered here")
        await second.pilot.pause(2.5)  # several looks
        assert second.questions == ["One"]
        await first.pilot.press("escape")
        await second.until(lambda: second.questions == ["One", "Tell me more"])
        await second.until_gone("! Another")
        assert not any("deleted" in words for words in second.told)
        assert second.screen.turns.conversation.branch.name == first.screen.turns.conversation.branch.name


async def test_a_branch_that_another_window_deleted_is_left(tmp_path: Path, template: ChatTemplate) -> None:
    async with two_windows(tmp_path, template) as (first, second):
        await second.say("/fork aside")
        await say(second, "Two")
        await second.say("/switch main")
        await second.until(lambda: second.questions == ["One"])
        await first.say("/switch aside")
        await first.until(lambda: first.questions == ["One", "Two"])
        store = second.chat.store
        here = second.screen.turns.conversation.branch
        aside = next(one for one in store.branches(here.session_id) if one.name == "aside")
        store.delete_branch(aside, here)
        await first.until_told("Another window has deleted this branch")
        await first.until(lambda: first.questions == [])


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


async def test_what_another_window_adds_to_the_branch_on_screen_is_shown_once_the_prompt_is_empty(
    tmp_path: Path, template: ChatTemplate
) -> None:
    async with two_windows(tmp_path, template) as (first, second):
        await say(first, "Two")
        await second.until(lambda: second.questions == ["One", "Two"])
        await second.until_told("Another window has added 2 messages here")
        await say(second, "Three")
        await first.until(lambda: first.questions == ["One", "Two", "Three"])
        await second.type("Vier")
        await say(first, "Four")
        await second.until_shown("! Another window has added")
        await second.pilot.press("ctrl+u")
        await second.until(lambda: second.questions == ["One", "Two", "Three", "Four"])
        await second.until_gone("! Another")
        [summary] = first.chat.store.list_sessions()
        assert summary.num_branches == 1


async def test_two_windows_that_write_in_one_conversation_keep_both_answers_and_say_so(
    tmp_path: Path, template: ChatTemplate
) -> None:
    async with two_windows(tmp_path, template) as (first, second):
        await second.type("Zwe")
        await say(first, "Two")
        await second.until_shown("! Another window has added 2 messages here · shown once the prompt")
        assert second.questions == ["One"]
        await say(second, "i")
        await second.until_told("branch of its own, main-2: another window has added messages to main")
        await second.until_gone("! Another")
        begun = "begun the branch main-2 · /switch main-2 opens it"
        await first.until(lambda: begun in first.screen.notices.text())
        assert first.questions == ["One", "Two"]
        await second.say("/switch main")
        await second.until(lambda: second.questions == ["One", "Two"])
        store, [summary] = first.chat.store, first.chat.store.list_sessions()
        leaves = [branch.leaf_id for branch in store.branches(summary.session.id)]
        paths = [[turn.text for turn in store.turns_to(leaf)][::2] for leaf in leaves]
        assert sorted(paths) == [["One", "Two"], ["One", "Zwei"]]


async def test_a_branch_that_got_its_name_from_its_first_message_was_moved_by_nobody(
    tmp_path: Path, template: ChatTemplate
) -> None:
    async with window_on(tmp_path, template) as shown:
        await say(shown, "One")
        await shown.say("/fork")
        await shown.until(lambda: shown.screen.turns.stored.branch.name == "main-2")
        await say(shown, "Where is the ferry?")
        assert shown.screen.turns.stored.branch.name == "where-is-the-ferry"
        assert "another window" not in shown.screen.notices.text()
