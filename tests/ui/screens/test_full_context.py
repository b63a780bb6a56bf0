"""A context that is full: what is offered helps, and what was written stays as it was."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine.api.events import Usage
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import Finish
from tests.ui.harness import window
from tests.ui.scripted import ScriptedChat
from tests.ui.scripted_engine import scripted_snapshot
from tests.ui.stored import window_on

pytestmark = pytest.mark.tui


def fill(chat: ScriptedChat) -> None:
    """Store a conversation whose answer has filled the context."""
    conversation = chat.add_session("Oslo", [("By boat?", "By train.")])
    usage = Usage(prompt_tokens=8000, computed_tokens=8000, completion_tokens=192)
    last = replace(conversation.turns[-1], finish=Finish.LENGTH, usage=usage)
    chat.store.paths[conversation.session.id, conversation.branch.name] = (*conversation.turns[:-1], last)


async def test_an_answer_that_filled_the_context_offers_no_going_on(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=fill, initial="Oslo") as shown:
        await shown.until_shown("■ the context is full · /summary begins anew")
        assert "/continue" not in shown.conversation_text
        await shown.pilot.press("f5")
        await shown.until_told("The context is full: /summary begins")
        await shown.until_shown("reused 0 of 8,000")


async def test_an_answer_that_cannot_go_on_keeps_its_footer(tmp_path: Path, template: ChatTemplate) -> None:
    async with window_on(tmp_path, template) as shown:
        shown.engine.held_after = 1
        await shown.say("One")
        await shown.until(lambda: bool(shown.engine.handles) and "reading" not in shown.conversation_text)
        await shown.pilot.press("escape")
        await shown.until_shown("■ interrupted")
        footer = [line for line in shown.conversation_text.splitlines() if "↳" in line]
        shown.engine.max_context = 5
        await shown.pilot.press("f5")
        await shown.until(lambda: bool(shown.told))
        await shown.until_answered()
        await shown.until_shown("■ interrupted")
        assert footer == [line for line in shown.conversation_text.splitlines() if "↳" in line] != []


async def test_a_message_that_is_longer_than_the_context_says_so_and_comes_back(
    tmp_path: Path, template: ChatTemplate
) -> None:
    (tmp_path / "long.txt").write_text("a long text " * 50)
    async with window_on(tmp_path, template, max_context=100) as shown:
        await shown.say("one word " * 200)
        await shown.until_told("Message is too long for this model: ")
        await shown.until_told(" of 100 tokens. Send a part of it, or choose a model")
        assert shown.screen.prompt.text.startswith("one word")
        await shown.pilot.press("ctrl+u")
        shown.app.clear_notifications()
        await shown.say(f"@{tmp_path}/long.txt what?")
        await shown.until_told("File is too long for this model: ")
        await shown.until_shown("▤ long.txt")


async def test_a_summary_is_asked_for_where_there_is_room_and_begins_another_conversation(
    tmp_path: Path, template: ChatTemplate
) -> None:
    async with window_on(tmp_path, template, max_context=1000) as shown:
        shown.engine.shown = replace(scripted_snapshot(()), max_context=1000)
        await shown.say("One")
        await shown.until_answered()
        await shown.say("two " * 280)
        await shown.until_answered()
        await shown.say("/summary")
        await shown.until_told("without the last 2 messages")
        await shown.until_answered()
        assert [text[:6] for text in shown.questions] == ["One", "Sum up"]
        await shown.say("/summary")
        await shown.until(lambda: shown.screen.turns.conversation is None)
        await shown.say("Three")
        await shown.until_answered()
        session = shown.screen.turns.stored.session
        assert session.title == "Three"
        assert session.system.endswith("Summary of the conversation so far:\n\nVery well.")
        assert shown.questions == ["Three"]


async def test_what_is_too_long_from_its_first_message_on_is_not_summed_up(
    tmp_path: Path, template: ChatTemplate
) -> None:
    async with window_on(tmp_path, template, max_context=1000) as shown:
        shown.engine.shown = replace(scripted_snapshot(()), max_context=1000)
        await shown.say("two " * 280)
        await shown.until_answered()
        await shown.say("/summary")
        await shown.until_told("even its first message leaves no room")
