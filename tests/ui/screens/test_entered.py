"""What is entered while a conversation is being opened is meant for that one, and comes back without it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvchat.chat.conversation import Conversation
from tests.ui.harness import Window, window
from tests.ui.scripted import ScriptedChat

pytestmark = pytest.mark.tui


def two(chat: ScriptedChat) -> None:
    for title in ("Oslo", "Bergen"):
        chat.add_session(title, [(f"{title}?", "Yes.")])


def opener(shown: Window, gate: asyncio.Event, title: str) -> Callable[[], Awaitable[Conversation]]:
    """Return what opens a conversation once the gate is open."""

    async def opened() -> Conversation:
        await gate.wait()
        return shown.chat.open(title)

    return opened


async def refused(shown: Window, gate: asyncio.Event) -> None:
    """End an opening in vain."""
    gate.set()
    await shown.until_told("no session")
    await shown.until_at_rest()


async def test_a_pasted_mark_that_comes_back_reads_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("one")
    monkeypatch.chdir(tmp_path)
    async with window(tmp_path) as shown:
        gate = asyncio.Event()
        shown.screen.conversations.open_with(opener(shown, gate, "Narvik"))
        await shown.paste("see @notes.txt")
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.screen.composer.waiting == ["see @notes.txt"])
        await refused(shown, gate)
        assert shown.screen.prompt.text == "see @notes.txt"
        await shown.pilot.press("enter")
        await shown.until_sent("see @notes.txt")


async def test_messages_come_back_in_order_and_commands_among_them_in_the_history(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        gate = asyncio.Event()
        shown.screen.conversations.open_with(opener(shown, gate, "Narvik"))
        await shown.say("first")
        await shown.say("/title Fjords")
        await shown.say("second")
        await shown.until(lambda: shown.screen.composer.waiting == ["first", "second"])
        await shown.type("and")
        await refused(shown, gate)
        assert shown.screen.prompt.text == "first\nsecond\nand"
        await shown.pilot.press("up", "up", "up")
        await shown.until(lambda: shown.screen.prompt.text == "/title Fjords")


async def test_what_was_entered_for_one_conversation_does_not_go_to_another(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=two) as shown:
        shown.screen.conversations.open_with(opener(shown, asyncio.Event(), "Oslo"))
        await shown.say("for Oslo")
        await shown.until(lambda: shown.screen.composer.waiting == ["for Oslo"])
        await shown.pilot.press("ctrl+n")
        await shown.until_at_rest()
        assert shown.screen.prompt.text == "for Oslo"
        assert shown.screen.composer.waiting == []
        assert (shown.chat.sent, shown.screen.turns.is_busy) == ([], False)


async def test_what_was_opened_is_closed_though_another_was_asked_for_before_it_came(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=two) as shown:
        late = shown.chat.open("Oslo").session.id
        gate = asyncio.Event()
        shown.screen.conversations.open_with(opener(shown, gate, "Oslo"))
        await shown.pilot.pause()
        shown.screen.commands.switch("Bergen")
        await shown.until(lambda: shown.questions == ["Bergen?"])
        assert shown.chat.closed == []
        gate.set()
        await shown.until(lambda: shown.chat.closed == [late])
        assert shown.questions == ["Bergen?"]


async def test_what_waits_to_be_drawn_is_closed_where_another_is_asked_for(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=two) as shown:
        late = shown.chat.open("Oslo").session.id
        async with shown.screen.turns._drawing:
            await shown.say("/switch Oslo")
            await shown.until(lambda: any(one.group == "open" for one in shown.app.workers))
            await shown.pilot.pause(0.05)  # it is opened, and waits for what is being drawn
            shown.screen.commands.switch("Bergen")
            await shown.until(lambda: shown.chat.closed == [late])
            assert shown.questions == []
        await shown.until(lambda: shown.questions == ["Bergen?"])


async def test_what_is_being_drawn_is_drawn_to_its_end_though_another_was_asked_for_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with window(tmp_path, prepare=two) as shown:
        monkeypatch.setattr(
            shown.chat, "bring_forward", lambda conversation: shown.screen.commands.switch("nowhere")
        )
        await shown.say("/switch Oslo")
        await shown.until_told("no session")
        await shown.until_shown("Oslo  ›  main")
        assert shown.questions == ["Oslo?"]
        assert shown.chat.closed == []
