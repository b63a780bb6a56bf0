"""What was written and not sent outlives the window."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from kvchat.chat.events import ChatEvent
from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.errors import StorageError
from kvchat.text.attached_files import Attachment, before_message
from tests.terminal import terminal
from tests.ui.gate import HELD_S
from tests.ui.harness import talk, window
from tests.ui.scripted import Answer, ScriptedChat, ScriptedUnsent
from tests.ui.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.tui


async def test_what_waits_for_the_model_is_kept_once_however_often_one_leaves(tmp_path: Path) -> None:
    async with window(tmp_path, engine=ScriptedEngine(phase=EnginePhase.LOADING)) as shown:
        await shown.say("one")
        await shown.say("two")
        await shown.type("half")
        shown.screen.quit(143)
        shown.screen.quit(129)
        shown.screen.quit()
        shown.screen.drafts.keep_all()
        assert shown.chat.store.unsent.kept == {None: ["one\ntwo", "half"]}


async def test_what_waits_behind_an_answer_is_kept_for_its_session_alone(tmp_path: Path) -> None:
    gate = Event()
    async with window(tmp_path, Answer(hold=gate)) as shown:
        await shown.say("first")
        await shown.until(lambda: shown.chat.sent == ["first"])
        await shown.say("second")
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: shown.screen.turns.conversation is None)
        await shown.type("here")
        shown.chat.store.unsent.is_full = True
        await shown.pilot.press("ctrl+q")
        await shown.until_shown("no space is left")
        assert shown.screen.prompt.text == "here"
        shown.chat.store.unsent.is_full = False
        gate.set()
        shown.screen.quit()
        assert shown.chat.store.unsent.kept == {"s1": ["second"], None: ["here"]}


async def test_a_changed_message_that_is_asked_about_is_kept(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        shown.chat.hold_costs = Event()
        await shown.say("/edit")
        await shown.type("!")
        await shown.pilot.press("enter")
        await shown.until(lambda: bool(shown.screen.revisions.asked))
        shown.screen.quit()
        shown.chat.hold_costs.set()
        assert shown.chat.store.unsent.kept == {"s1": ["hello!"]}


async def test_what_was_kept_comes_back_with_its_files_before_what_is_typed(tmp_path: Path) -> None:
    file = before_message([Attachment(name="notes.txt", text="one")])

    def prepare(chat: ScriptedChat) -> None:
        talk(chat)
        chat.store.unsent.keep("s1", f"{file}look at this")
        chat.store.unsent.keep(None, "a beginning")

    async with window(tmp_path, prepare=prepare, initial="Oslo") as shown:
        await shown.until(lambda: shown.screen.prompt.text == "look at this")
        await shown.until_shown("▤ notes.txt")
        await shown.until_shown("Unsent draft restored")
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: shown.screen.prompt.text == "a beginning\nlook at this")
        assert shown.chat.store.unsent.kept == {}


async def test_where_it_cannot_be_kept_the_window_stays_once_with_it_in_the_prompt(tmp_path: Path) -> None:
    async with window(tmp_path, engine=ScriptedEngine(phase=EnginePhase.LOADING)) as shown:
        shown.chat.store.unsent.is_full = True
        await shown.say("one")
        await shown.type("two")
        await shown.pilot.press("ctrl+q")
        await shown.until_shown("no space is left")
        assert shown.screen.prompt.text == "one\ntwo"
        await shown.pilot.press("ctrl+q")
        assert shown.app._exit


async def test_a_text_comes_back_on_the_branch_that_it_was_written_on(tmp_path: Path) -> None:
    def prepare(chat: ScriptedChat) -> None:
        talk(chat)
        chat.fork(chat.open("Oslo"), name="boats")
        chat.store.unsent.keep("s1", "on boats", "boats")
        chat.store.unsent.keep("s1", "on a branch that is gone", "gone")

    async with window(tmp_path, prepare=prepare, initial="Oslo") as shown:
        await shown.until(lambda: shown.screen.prompt.text == "on a branch that is gone")
        shown.screen.prompt.set_text("")
        await shown.say("/switch boats")
        await shown.until(lambda: shown.screen.prompt.text == "on boats")
        shown.screen.quit()
        assert shown.chat.store.unsent.kept == {"s1": ["on boats"]}
        assert shown.chat.store.unsent.branches["on boats"] == "boats"


async def test_what_is_found_when_its_conversation_has_been_left_stays_kept(tmp_path: Path) -> None:
    def prepare(chat: ScriptedChat) -> None:
        talk(chat)
        chat.store.unsent.keep("s1", "half")
        chat.store.unsent.lending.clear()

    async with window(tmp_path, prepare=prepare, initial="Oslo") as shown:
        await shown.until(lambda: shown.chat.store.unsent.asked == ["s1"])
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: shown.screen.turns.conversation is None)
        shown.chat.store.unsent.lending.set()
        await shown.app.workers.wait_for_complete()
        assert shown.screen.prompt.text == ""
        assert shown.chat.store.unsent.kept == {"s1": ["half"]}


async def test_what_fails_at_the_end_and_cannot_be_kept_comes_back_to_the_prompt(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        gate = Event()

        def fail(conversation: Any, text: str) -> Iterator[ChatEvent]:
            gate.wait(HELD_S)
            raise StorageError("no space is left")
            yield

        shown.chat.send = fail  # type: ignore[method-assign]
        await shown.say("go")
        await shown.until(lambda: shown.screen.turns.is_running)
        shown.chat.store.unsent.is_full = True
        gate.set()
        shown.screen.quit()
        await shown.until(lambda: shown.screen.prompt.text == "go")
        assert not shown.screen.turns.is_busy


async def test_what_was_for_a_session_that_is_gone_is_kept_for_the_next_conversation(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.type("half")
        shown.chat.store.sessions.clear()
        shown.chat.store.paths.clear()
        shown.screen.quit()
        assert shown.chat.store.unsent.kept == {None: ["half"]}


async def test_a_draft_is_kept_but_no_command_unchanged_edit_or_old_message(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        shown.screen.revisions.begin_edit(shown.transcript.views[0].turn)
        await shown.until(lambda: shown.screen.prompt.text == "hello")
        assert shown.screen.drafts._typed() == []
        await shown.pilot.press("escape")
        await shown.type("/undo")
        assert shown.screen.drafts._typed() == []
        shown.screen.prompt.set_text("")
        await shown.type("half")
        await shown.pilot.press("up")
        await shown.until(lambda: shown.screen.prompt.text == "hello")
        shown.screen.quit()
        assert shown.chat.store.unsent.kept == {"s1": ["half"]}


async def test_a_draft_that_was_erased_stays_away_and_in_the_history(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.type("half")
        await shown.pilot.press("up", "ctrl+u")
        await shown.say_and_wait("another")
        assert shown.screen.drafts._typed() == []
        await shown.pilot.press("up", "up")
        assert shown.screen.prompt.text == "half"


async def test_what_is_written_stays_with_its_conversation(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk) as shown:
        await shown.say_and_wait("hello")
        await shown.type("half")
        await shown.pilot.press("up")
        await shown.until(lambda: shown.screen.prompt.text == "hello")
        await shown.pilot.press("ctrl+n")
        await shown.type("/fo")
        await shown.until(lambda: shown.screen.turns.conversation is None)
        await shown.app.workers.wait_for_complete()
        assert shown.screen.prompt.text == "/fo"
        shown.screen.quit()
        assert list(shown.chat.store.unsent.kept.values()) == [["half"]]
        assert None not in shown.chat.store.unsent.kept


async def test_a_draft_that_comes_back_makes_no_message_of_a_command(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("/fork deep")
        shown.screen.composer.give_back("half")
        assert shown.screen.prompt.text == "/fork deep"
        await shown.pilot.press("escape", "up")
        assert shown.screen.prompt.text == "half"


async def test_a_draft_that_gave_way_is_kept_until_it_is_sent(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.type("half")
        shown.screen.prompt.write("another")
        assert [one.text for one in shown.screen.drafts._typed()] == ["half", "another"]
        await shown.pilot.press("up")
        await shown.until(lambda: shown.screen.prompt.text == "half")
        await shown.say(" more")
        await shown.until_sent("hello", "half more")
        assert [one.text for one in shown.screen.drafts._typed()] == ["another"]


async def test_what_is_typed_when_the_interface_fails_is_kept(tmp_path: Path) -> None:
    unsent: list[ScriptedUnsent] = []

    async def type_and_fail() -> None:
        async with window(tmp_path) as shown:
            unsent.append(shown.chat.store.unsent)
            await shown.type("half")
            shown.app.thread_failed(RuntimeError("a bug"))
            await shown.pilot.pause()

    with pytest.raises(RuntimeError, match="a bug"):
        await type_and_fail()
    assert unsent[0].kept == {None: ["half"]}


def test_what_was_typed_is_in_the_next_window_however_this_one_ends(tmp_path: Path) -> None:
    """Also in a session in which nothing was said; of a vanished terminal two tell: it is kept once."""
    arguments = ["-m", "kvchat", "--remote", "http://127.0.0.1:9", "-m", "none"]
    with terminal([*arguments, "--new", "demo"], KVCHAT_HOME=str(tmp_path)) as shown:
        shown.until_shown("Ask anything")
        shown.type("half a thought")
        shown.until_shown("› half a thought")
        shown.type("\x11")
        assert shown.exit_status() == 0
    with terminal([*arguments, "demo"], KVCHAT_HOME=str(tmp_path)) as shown:
        shown.until_shown("› half a thought")
        shown.hang_up()
        shown.exit_status()
    (kept,) = tmp_path.rglob("unsent/*.json")
    assert kept.read_text().count("half a thought") == 1
    assert not [file for file in tmp_path.rglob("*.json") if file.stat().st_mode & 0o077]
    with terminal([*arguments, "demo"], KVCHAT_HOME=str(tmp_path)) as shown:
        shown.until_shown("› half a thought")
