"""Conversations that are deleted when they are left, and the commands that are other names."""

from pathlib import Path
from threading import Event

import pytest

from kvchat.errors import StorageError
from kvchat.session.tree import SessionId
from kvchat.ui.widgets.session_list import SessionList
from tests.ui.gate import Gate, hold
from tests.ui.harness import Window, window
from tests.ui.scripted import Answer, ScriptedChat, ScriptedConversation

pytestmark = pytest.mark.tui


def talk(chat: ScriptedChat) -> None:
    chat.add_session("Oslo", [("By boat?", "Yes.")])


def titles(shown: Window) -> list[str]:
    return [session.title for session in shown.chat.store.sessions.values()]


async def test_a_temporary_conversation_is_deleted_when_it_is_left(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk) as shown:
        await shown.say("/temp")
        await shown.until_shown("temporary conversation")
        await shown.say_and_wait("a secret")
        await shown.until_shown("deleted when you leave")
        assert titles(shown) == ["Oslo", "a secret"]
        await shown.say("/switch Oslo")
        await shown.until(lambda: titles(shown) == ["Oslo"])
        assert shown.questions == ["By boat?"]
        await shown.until_gone("a secret")
        assert "deleted when you leave" not in shown.text


async def test_it_is_deleted_with_all_its_branches_and_not_while_one_of_them_is_on_screen(
    tmp_path: Path,
) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/temp")
        await shown.say_and_wait("a secret")
        await shown.say("/fork beside")
        await shown.until_shown("›  beside")
        await shown.until_shown("deleted when you leave")
        assert titles(shown) == ["a secret"]
        await shown.say("/new")
        await shown.until(lambda: titles(shown) == [])


async def test_it_waits_for_the_end_of_its_answer(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, Answer(text="word " * 9, hold=hold), prepare=talk) as shown:
        await shown.say("/temp")
        await shown.say("a secret")
        await shown.until(lambda: titles(shown) == ["Oslo", "a secret"])
        await shown.say("/switch Oslo")
        await shown.until(lambda: shown.questions == ["By boat?"])
        await shown.until_at_rest()
        assert titles(shown) == ["Oslo", "a secret"]
        hold.set()
        await shown.until(lambda: titles(shown) == ["Oslo"])


async def test_asked_again_it_is_kept(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk) as shown:
        await shown.say("/temp")
        await shown.say_and_wait("no secret")
        await shown.say("/temp")
        await shown.until_shown("this conversation is kept")
        await shown.say("/switch Oslo")
        await shown.until(lambda: shown.questions == ["By boat?"])
        await shown.until_at_rest()
        assert titles(shown) == ["Oslo", "no secret"]


async def test_leaving_kvchat_deletes_it(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk) as shown:
        await shown.say("/temp")
        await shown.say_and_wait("a secret")
        shown.screen.quit()
        assert titles(shown) == ["Oslo"]


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
    async with window(tmp_path, prepare=talk) as shown:
        await shown.say("/temp")
        await shown.say_and_wait("a secret")
        shown.app._fatal_error()
        assert titles(shown) == ["Oslo"]


@pytest.mark.slow
async def test_it_is_deleted_where_the_opening_that_left_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with window(tmp_path, prepare=talk) as shown:
        await shown.say("/temp")
        await shown.say_and_wait("a secret")
        opens = iter([shown.screen.commands.new])

        def open_another(conversation: ScriptedConversation) -> None:
            for one in opens:
                one()

        monkeypatch.setattr(shown.chat, "bring_forward", open_another)
        await shown.say("/switch Oslo")
        await shown.until(lambda: titles(shown) == ["Oslo"])
        await shown.until(lambda: shown.questions == [])
        assert next(opens, None) is None


async def test_it_is_deleted_behind_an_aside_that_was_being_answered(tmp_path: Path) -> None:
    hold = Event()
    async with window(tmp_path, Answer(), Answer(hold=hold), prepare=talk) as shown:
        await shown.say("/temp")
        await shown.say_and_wait("a secret")
        await shown.say("/aside another")
        await shown.until(lambda: shown.chat.sent == ["a secret", "another"])
        await shown.say("/switch Oslo")
        await shown.until(lambda: shown.questions == ["By boat?"])
        await shown.until_at_rest()
        assert titles(shown) == ["Oslo", "a secret"]
        hold.set()
        await shown.until(lambda: titles(shown) == ["Oslo"])
        told = {one.message.split(",")[0] for one in shown.app._notifications}
        assert "the aside is gone" in told


@pytest.mark.slow
async def test_one_that_cannot_be_deleted_is_deleted_when_kvchat_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(session_id: SessionId) -> None:
        raise StorageError("the disk is away")

    async with window(tmp_path, prepare=talk) as shown:
        await shown.say("/temp")
        await shown.say_and_wait("a secret")
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

    def close(conversation: ScriptedConversation) -> None:
        raise StorageError("it is gone")

    async with window(tmp_path, prepare=talk) as shown:
        await shown.say("/temp")
        await shown.say_and_wait("a secret")
        monkeypatch.setattr(shown.chat, "close", gate.before(close))
        await shown.say("/switch Oslo")
        await shown.until(gate.reached.is_set)
        shown.screen.quit()
        assert titles(shown) == ["Oslo"]
        gate.open()


@pytest.mark.slow
async def test_it_is_not_said_to_be_kept_while_its_first_message_is_being_stored(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk) as shown:
        gate = hold(shown.chat, "create")
        await shown.say("/temp")
        await shown.say("a secret")
        await shown.until(gate.reached.is_set)
        await shown.say("/temp")
        await shown.until_shown("still temporary: /temp again keeps it")
        gate.open()
        await shown.until_shown("deleted when you leave")
        await shown.until(lambda: not shown.screen.turns.is_busy)
        assert not any("is kept" in one.message for one in shown.app._notifications)
        await shown.say("/switch Oslo")
        await shown.until(lambda: titles(shown) == ["Oslo"])


@pytest.mark.slow
async def test_one_that_is_come_back_to_and_kept_while_it_is_let_go_of_stays(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk) as shown:
        await shown.say("/temp")
        await shown.say_and_wait("no secret")
        gate = hold(shown.chat, "close")
        await shown.say("/switch Oslo")
        await shown.until(gate.reached.is_set)
        await shown.say("/switch no secret")
        await shown.until(lambda: shown.questions == ["no secret"])
        await shown.say("/temp")
        await shown.until_shown("this conversation is kept")
        gate.open()
        await shown.until_at_rest()
        assert titles(shown) == ["Oslo", "no secret"]
        assert shown.questions == ["no secret"]


@pytest.mark.slow
async def test_one_whose_words_are_just_being_deleted_is_not_said_to_be_kept(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk) as shown:
        await shown.say("/temp")
        await shown.say_and_wait("a secret")
        gate = hold(shown.chat.store, "delete_session")
        await shown.say("/switch Oslo")
        await shown.until(gate.reached.is_set)
        await shown.say("/switch a secret")
        await shown.until(lambda: shown.questions == ["a secret"])
        await shown.say("/temp")
        await shown.until_shown("it is just being deleted")
        gate.open()
        await shown.until(lambda: titles(shown) == ["Oslo"])
        assert not any("is kept" in one.message for one in shown.app._notifications)


async def test_clear_begins_another_conversation_and_deletes_nothing(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/clear")
        await shown.until(lambda: shown.questions == [])
        assert titles(shown) == ["hello"]


async def test_tree_leads_to_the_branch_on_screen_among_the_others(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk, initial="Oslo") as shown:
        await shown.until(lambda: shown.questions == ["By boat?"])
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
