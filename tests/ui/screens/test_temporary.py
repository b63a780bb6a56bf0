"""Conversations that are deleted when they are left, and the way to a branch in the list."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event

import pytest

from kvchat.chat.conversation import Conversation
from kvchat.errors import StorageError
from kvchat.session.tree import SessionId
from kvchat.ui.widgets.session_list import SessionList
from tests.ui.gate import Gate, hold
from tests.ui.harness import Window, talk, talk_window, window
from tests.ui.scripted import Answer

pytestmark = pytest.mark.tui


OSLO = ["By boat?", "How long?"]


def titles(shown: Window) -> list[str]:
    return [session.title for session in shown.chat.store.sessions.values()]


@asynccontextmanager
async def told_a_secret(tmp_path: Path, *answers: Answer) -> AsyncIterator[Window]:
    """Hold a temporary conversation beside one that is kept."""
    async with window(tmp_path, *answers, prepare=talk) as shown:
        await shown.say("/temp")
        await shown.say_and_wait("a secret")
        yield shown


async def test_a_temporary_conversation_is_deleted_with_its_branches_when_it_is_left(tmp_path: Path) -> None:
    async with told_a_secret(tmp_path) as shown:
        await shown.until_shown("deleted when you leave")
        await shown.say("/fork beside")
        await shown.until_shown("›  beside")
        await shown.until_shown("deleted when you leave")
        assert titles(shown) == ["Oslo", "a secret"]
        await shown.say("/switch Oslo")
        await shown.until(lambda: titles(shown) == ["Oslo"])
        assert shown.questions == OSLO
        await shown.until_gone("a secret")
        assert "deleted when you leave" not in shown.text


async def test_it_waits_for_the_end_of_its_answer(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, Answer(text="word " * 9, hold=hold), prepare=talk) as shown:
        await shown.say("/temp")
        await shown.say("a secret")
        await shown.until(lambda: titles(shown) == ["Oslo", "a secret"])
        await shown.say("/switch Oslo")
        await shown.until(lambda: shown.questions == OSLO)
        await shown.until_at_rest()
        assert titles(shown) == ["Oslo", "a secret"]
        hold.set()
        await shown.until(lambda: titles(shown) == ["Oslo"])


async def test_asked_again_it_is_kept_and_else_deleted_when_kvchat_is_left(tmp_path: Path) -> None:
    async with told_a_secret(tmp_path) as shown:
        await shown.say("/temp")
        await shown.until_shown("this conversation is kept")
        await shown.say("/switch Oslo")
        await shown.until(lambda: shown.questions == OSLO)
        await shown.until_at_rest()
        assert titles(shown) == ["Oslo", "a secret"]
        await shown.say("/temp")
        await shown.say_and_wait("another")
        assert titles(shown) == ["Oslo", "a secret", "another"]
        shown.screen.quit()
        assert titles(shown) == ["Oslo", "a secret"]


async def test_leaving_kvchat_deletes_one_whose_answer_that_stops(tmp_path: Path) -> None:
    gate = Event()
    async with window(tmp_path, Answer(text="word " * 9, hold=gate), prepare=talk) as shown:
        await shown.say("/temp")
        await shown.say("a secret")
        await shown.until(lambda: titles(shown) == ["Oslo", "a secret"])
        gate.set()
        shown.screen.quit()
        assert titles(shown) == ["Oslo"]


@pytest.mark.slow
async def test_a_window_that_fails_deletes_it(tmp_path: Path) -> None:
    async with told_a_secret(tmp_path) as shown:
        shown.app._fatal_error()
        assert titles(shown) == ["Oslo"]


@pytest.mark.slow
async def test_it_is_deleted_where_the_opening_that_left_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with told_a_secret(tmp_path) as shown:
        opens = iter([shown.screen.commands.new])

        def open_another(conversation: Conversation) -> None:
            for one in opens:
                one()

        monkeypatch.setattr(shown.chat, "bring_forward", open_another)
        await shown.say("/switch Oslo")
        await shown.until(lambda: titles(shown) == ["Oslo"])
        await shown.until(lambda: shown.questions == [])
        assert next(opens, None) is None


@pytest.mark.slow
async def test_it_is_not_said_to_be_kept_while_its_words_are_stored_or_deleted(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk) as shown:
        creating, deleting = hold(shown.chat, "create"), hold(shown.chat.store, "delete_session")
        await shown.say("/temp")
        await shown.say("a secret")
        await shown.until(creating.reached.is_set)
        await shown.say("/temp")
        await shown.until_shown("still temporary: /temp again keeps it")
        creating.open()
        await shown.until_shown("deleted when you leave")
        await shown.until(lambda: not shown.screen.turns.is_busy)
        await shown.say("/switch Oslo")
        await shown.until(deleting.reached.is_set)
        await shown.say("/switch a secret")
        await shown.until(lambda: shown.questions == ["a secret"])
        await shown.say("/temp")
        await shown.until_shown("it is just being deleted")
        deleting.open()
        await shown.until(lambda: titles(shown) == ["Oslo"])
        assert not any("is kept" in message for message in shown.told)


async def test_it_is_deleted_behind_an_aside_that_was_being_answered(tmp_path: Path) -> None:
    hold = Event()
    async with told_a_secret(tmp_path, Answer(), Answer(hold=hold)) as shown:
        await shown.say("/aside another")
        await shown.until(lambda: shown.chat.sent == ["a secret", "another"])
        await shown.say("/switch Oslo")
        await shown.until(lambda: shown.questions == OSLO)
        await shown.until_at_rest()
        assert titles(shown) == ["Oslo", "a secret"]
        hold.set()
        await shown.until(lambda: titles(shown) == ["Oslo"])
        assert any("the aside is gone" in message for message in shown.told)


@pytest.mark.slow
async def test_one_that_cannot_be_deleted_is_deleted_when_kvchat_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(session_id: SessionId) -> None:
        raise StorageError("the disk is away")

    async with told_a_secret(tmp_path) as shown:
        with monkeypatch.context() as patch:
            patch.setattr(shown.chat.store, "delete_session", refuse)
            await shown.say("/switch Oslo")
            await shown.until_shown("the disk is away")
            await shown.until_at_rest()
        assert titles(shown) == ["Oslo", "a secret"]
        shown.screen.quit()
        assert titles(shown) == ["Oslo"]


@pytest.mark.slow
async def test_one_that_is_being_let_go_of_is_deleted_when_kvchat_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()

    def close(conversation: Conversation) -> None:
        raise StorageError("it is gone")

    async with told_a_secret(tmp_path) as shown:
        monkeypatch.setattr(shown.chat, "close", gate.before(close))
        await shown.say("/switch Oslo")
        await shown.until(gate.reached.is_set)
        shown.screen.quit()
        assert titles(shown) == ["Oslo"]
        gate.open()


@pytest.mark.slow
async def test_one_that_is_come_back_to_and_kept_while_it_is_let_go_of_stays(tmp_path: Path) -> None:
    async with told_a_secret(tmp_path) as shown:
        gate = hold(shown.chat, "close")
        await shown.say("/switch Oslo")
        await shown.until(gate.reached.is_set)
        await shown.say("/switch a secret")
        await shown.until(lambda: shown.questions == ["a secret"])
        await shown.say("/temp")
        await shown.until_shown("this conversation is kept")
        gate.open()
        await shown.until_at_rest()
        assert titles(shown) == ["Oslo", "a secret"]
        assert shown.questions == ["a secret"]


async def test_tree_leads_to_the_branch_on_screen_among_the_others(tmp_path: Path) -> None:
    async with talk_window(tmp_path) as shown:
        await shown.say("/fork by train")
        listed = shown.screen.query_one(SessionList)
        await shown.until(lambda: len(listed.lines) == 3)
        await shown.say("/tree")
        await shown.until(lambda: listed.has_focus)
        assert listed.chosen is not None
        assert listed.chosen.branch == "by train"
        await shown.pilot.press("left")
        await shown.until(lambda: len(listed.lines) == 1)
        await shown.pilot.press("escape")
        await shown.say("/tree")
        await shown.until(lambda: listed.chosen is not None and listed.chosen.branch == "by train")
