"""What becomes of a message: files that are marked in it, lines of a command, files of what is changed."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from textual import events

from kvchat.text.attached_files import Attachment, before_message
from kvchat.ui.controllers import sending
from kvchat.ui.controllers.sending import look_up
from tests.ui.gate import Gate
from tests.ui.harness import talk_window, window
from tests.ui.scripted import ScriptedChat

pytestmark = pytest.mark.tui

FILE = before_message([Attachment(name="notes.txt", text="one\ntwo")])


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "notes.txt").write_text("one\ntwo\n")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def with_file(chat: ScriptedChat) -> None:
    chat.add_session("Oslo", [("By boat?", "By train."), (f"{FILE}What is it?", "Two lines.")])


def hold_look_up(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Let marked files be read behind the gate that is returned."""
    gate = Gate()
    monkeypatch.setattr(sending, "look_up", gate.before(look_up))
    return gate


async def test_files_that_are_typed_in_full_go_with_the_message(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.burst("look at @notes.txt, and tell @ana what me@x.org is\nand then?\n")
        sent = f"{FILE}look at notes.txt, and tell @ana what me@x.org is"
        await shown.until_sent(sent, "and then?")
        await shown.until_shown("@ana is no file here, and was sent as it is")


async def test_a_message_whose_file_cannot_be_read_comes_back_once(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        for words, why in (("look at @notez.txt", "notez.txt is not there"), ("@image.png?", "is no text")):
            await shown.burst(f"{words}\n")
            await shown.until_shown(why)
            assert shown.chat.sent == []
            assert shown.screen.prompt.text == words
            shown.screen.prompt.set_text("")
        await shown.burst("look at @notez.txt\n")
        await shown.until(lambda: shown.screen.prompt.text != "")
        await shown.pilot.press("enter")
        await shown.until_sent("look at @notez.txt")


async def test_enter_sends_the_beginning_of_a_path_as_it_is_and_tab_attaches(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("what is @n")
        await shown.until_shown("▸ notes.txt")
        await shown.pilot.press("enter")
        await shown.until_sent("what is @n")
        assert (shown.screen.prompt.text, shown.screen.composer.attachments) == ("", ())
        await shown.type("@no")
        for key in (events.Key("tab", "\t"), events.Key("w", "w"), events.Key("enter", "\r")):
            shown.app.post_message(key)
        await shown.until_sent("what is @n", f"{FILE}w")
        assert shown.screen.prompt.text == ""


async def test_a_typed_command_may_have_lines_where_its_words_may_and_is_never_sent(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.say("/title one\ntwo")
        await shown.until_shown("/title takes one line")
        assert shown.screen.prompt.text == "/title one\ntwo"
        shown.screen.prompt.set_text("")
        await shown.say("/system Be brief.\nBe kind.")
        await shown.say_and_wait("hello")
        assert [one.system for one in shown.chat.store.sessions.values()] == ["Be brief.\nBe kind."]
        await shown.say("/aside\nwhat is\na fjord?")
        await shown.until_sent("hello", "what is\na fjord?")


async def test_a_name_that_is_pasted_behind_a_typed_slash_runs_nothing(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("/ x")
        await shown.pilot.press("home", "right")
        await shown.paste("quit")
        await shown.pilot.press("enter")
        await shown.until_sent("/quit x")
        assert shown.app.is_running


async def test_the_files_of_a_message_stay_files_when_it_is_changed_or_forked_before(tmp_path: Path) -> None:
    async with talk_window(tmp_path, prepare=with_file) as shown:
        await shown.burst("/attach notes.txt\n")
        await shown.until_shown("▤ notes.txt · 7 B")
        await shown.say("/edit")
        await shown.until(lambda: shown.screen.prompt.text == "What is it?")
        await shown.pilot.press("escape")
        assert [one.name for one in shown.screen.composer.attachments] == ["notes.txt"]
        await shown.pilot.press("backspace")
        await shown.say("/edit")
        await shown.burst(" And @notes.txt?\n")
        await shown.until_sent(f"{FILE}{FILE}What is it? And notes.txt?")
        assert shown.screen.composer.attachments == ()
        await shown.pilot.press("f6", "up", "enter")
        await shown.until_shown("you: ▤ notes.txt")
        await shown.pilot.press("f")
        await shown.until(lambda: shown.screen.prompt.text == "What is it? And notes.txt?")
        assert [one.text for one in shown.screen.composer.attachments] == ["one\ntwo"] * 2


async def test_what_waits_for_its_file_is_kept_when_the_window_closes(tmp_path: Path) -> None:
    async with talk_window(tmp_path, prepare=with_file) as shown:
        shown.screen.composer.waiting.append("half")
        shown.screen.revisions.begin_edit(shown.transcript.views[2].turn)
        assert [one.text for one in shown.screen.drafts._typed()] == ["half"]


async def test_a_message_whose_conversation_was_left_says_where_enter_sends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = hold_look_up(monkeypatch)
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.burst("look at @notes.txt\n")
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: shown.screen.turns.conversation is None)
        gate.open()
        await shown.until_told("enter sends it to the one on screen")
        assert shown.screen.prompt.text == "look at @notes.txt"
        await shown.pilot.press("enter")
        await shown.until_sent("hello", f"{FILE}look at notes.txt")


async def test_what_is_attached_to_a_change_that_is_given_up_goes_with_the_next(tmp_path: Path) -> None:
    async with talk_window(tmp_path, prepare=with_file) as shown:
        await shown.say("/edit")
        await shown.until(lambda: shown.screen.prompt.text == "What is it?")
        await shown.paste("long " * 2000)
        await shown.until(lambda: len(shown.screen.composer.attachments) == 2)
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.screen.revisions.editing is None)
        assert [one.name for one in shown.screen.composer.attachments] == ["pasted text"]


async def test_a_message_that_waits_for_a_file_does_not_become_a_change_begun_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = hold_look_up(monkeypatch)
    async with talk_window(tmp_path, prepare=with_file) as shown:
        await shown.burst("look at @notes.txt\n")
        await shown.say("/edit")
        await shown.until(lambda: shown.screen.revisions.editing is not None)
        gate.open()
        await shown.until_told("enter sends it as the change")
        assert shown.chat.sent == []
        assert shown.screen.prompt.text == "look at @notes.txt\nWhat is it?"


async def test_a_mark_typed_in_this_run_reads_its_file_again_when_it_comes_back(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.burst("see @notes.txt now\n")
        sent = f"{FILE}see notes.txt now"
        await shown.until_sent(sent)
        await shown.pilot.press("up")
        await shown.until(lambda: shown.screen.prompt.text == "see @notes.txt now")
        await shown.pilot.press("enter")
        await shown.until_sent(sent, sent)


async def test_a_mark_in_a_paste_reads_no_file_also_when_it_comes_back(tmp_path: Path) -> None:
    words = "what does\n@notes.txt\n@app.route mean"
    async with window(tmp_path) as shown:
        await shown.paste(words)
        await shown.pilot.press("enter")
        await shown.until_sent(words)
        await shown.pilot.press("up")
        await shown.until(lambda: shown.screen.prompt.text == words)
        await shown.pilot.press("enter")
        await shown.until_sent(words, words)
        await shown.until_told("@notes.txt, @app.route was pasted earlier")


@pytest.mark.parametrize("keys", [("up",), ("ctrl+r", "enter"), ("slash", "e", "d", "i", "t", "enter")])
async def test_a_mark_in_a_message_of_an_earlier_run_reads_no_file(
    tmp_path: Path, keys: Sequence[str]
) -> None:
    def earlier(chat: ScriptedChat) -> None:
        chat.add_session("Oslo", [("see @notes.txt", "Two lines.")])

    async with window(tmp_path, prepare=earlier, initial="Oslo") as shown:
        await shown.until(lambda: len(shown.screen.prompt.messages) == len(shown.questions) == 1)
        await shown.pilot.press(*keys)
        await shown.until(lambda: shown.screen.prompt.text == "see @notes.txt")
        await shown.pilot.press("enter")
        await shown.until_sent("see @notes.txt")
        await shown.until_told("@notes.txt")
        assert any("stands in an earlier message" in message for message in shown.told)
