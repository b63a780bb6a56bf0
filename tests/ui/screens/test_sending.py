"""What becomes of a message: files that are marked in it, lines of a command, files of what is changed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from textual import events

from kvchat.text.attachments import Attachment, before_message
from kvchat.ui.controllers import sending
from kvchat.ui.controllers.sending import look_up
from tests.ui.gate import Gate
from tests.ui.harness import Window, window
from tests.ui.screens.test_deferred import burst
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


async def until_sent(shown: Window, predicate: Callable[[], bool]) -> None:
    """Wait until something was sent, and answered."""
    await shown.until(predicate)
    await shown.until(lambda: not shown.screen.turns.is_busy)


async def paste(shown: Window, text: str) -> None:
    shown.app.post_message(events.Paste(text))
    await shown.pilot.pause()


async def test_files_that_are_typed_in_full_go_with_the_message(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await burst(shown, "look at @notes.txt, and tell @ana what me@x.org is\nand then?\n")
        await until_sent(shown, lambda: len(shown.chat.sent) == 2)
        assert shown.chat.sent[0] == f"{FILE}look at notes.txt, and tell @ana what me@x.org is"
        assert shown.chat.sent[1] == "and then?"
        await shown.until_shown("@ana is no file here, and was sent as it is")


async def test_a_message_whose_file_cannot_be_read_comes_back_once(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        for words, why in (("look at @notez.txt", "notez.txt is not there"), ("@image.png?", "is no text")):
            await burst(shown, f"{words}\n")
            await shown.until_shown(why)
            assert shown.chat.sent == []
            assert shown.screen.prompt.text == words
            shown.screen.prompt.set_text("")
        await burst(shown, "look at @notez.txt\n")
        await shown.until(lambda: shown.screen.prompt.text != "")
        await shown.pilot.press("enter")
        await until_sent(shown, lambda: shown.chat.sent == ["look at @notez.txt"])


async def test_a_mark_in_a_paste_attaches_nothing(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await paste(shown, "what does\n@notes.txt\n@app.route mean")
        await shown.pilot.press("enter")
        await until_sent(shown, lambda: shown.chat.sent == ["what does\n@notes.txt\n@app.route mean"])
        assert FILE not in shown.chat.sent[0]


async def test_enter_sends_a_message_that_ends_in_the_beginning_of_a_path(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("what is @n")
        await shown.until_shown("▸ notes.txt")
        await shown.pilot.press("enter")
        await until_sent(shown, lambda: shown.chat.sent == ["what is @n"])
        assert (shown.screen.prompt.text, shown.screen.composer.attachments) == ("", ())


async def test_a_burst_of_tab_words_and_enter_sends_the_words_with_the_file(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("@no")
        for key in (events.Key("tab", "\t"), events.Key("w", "w"), events.Key("enter", "\r")):
            shown.app.post_message(key)
        await until_sent(shown, lambda: shown.chat.sent == [f"{FILE}w"])
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
        await until_sent(shown, lambda: shown.chat.sent == ["hello", "what is\na fjord?"])


async def test_a_name_that_is_pasted_behind_a_typed_slash_runs_nothing(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("/ x")
        await shown.pilot.press("home", "right")
        await paste(shown, "quit")
        await shown.pilot.press("enter")
        await until_sent(shown, lambda: shown.chat.sent == ["/quit x"])
        assert shown.app.is_running


async def test_the_files_of_a_message_stay_files_when_it_is_changed_or_forked_before(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=with_file, initial="Oslo") as shown:
        await shown.until(lambda: len(shown.questions) == 2)
        await burst(shown, "/attach notes.txt\n")
        await shown.until_shown("▤ notes.txt · 7 B")
        await shown.say("/edit")
        await shown.until(lambda: shown.screen.prompt.text == "What is it?")
        await shown.pilot.press("escape")
        assert [one.name for one in shown.screen.composer.attachments] == ["notes.txt"]
        await shown.pilot.press("backspace")
        await shown.say("/edit")
        await burst(shown, " And @notes.txt?\n")
        await until_sent(shown, lambda: shown.chat.sent == [f"{FILE}{FILE}What is it? And notes.txt?"])
        assert shown.screen.composer.attachments == ()
        await shown.pilot.press("f6", "up", "enter")
        await shown.until_shown("you: ▤ notes.txt")
        await shown.pilot.press("f")
        await shown.until(lambda: shown.screen.prompt.text == "What is it? And notes.txt?")
        assert [one.text for one in shown.screen.composer.attachments] == ["one\ntwo"] * 2


async def test_what_waits_for_its_file_is_kept_when_the_window_closes(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=with_file, initial="Oslo") as shown:
        await shown.until(lambda: len(shown.questions) == 2)
        shown.screen.composer.waiting.append("half")
        shown.screen.revisions.begin_edit(shown.transcript.views[2].turn)
        assert [one.text for one in shown.screen.drafts._typed()] == ["half"]


async def test_a_message_whose_conversation_was_left_says_where_enter_sends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = hold_look_up(monkeypatch)
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await burst(shown, "look at @notes.txt\n")
        await shown.pilot.press("ctrl+n")
        await shown.until(lambda: shown.screen.turns.conversation is None)
        gate.open()
        words = "enter sends it to the one on screen"
        await shown.until(lambda: any(words in one.message for one in shown.app._notifications))
        assert shown.screen.prompt.text == "look at @notes.txt"
        await shown.pilot.press("enter")
        await until_sent(shown, lambda: shown.chat.sent == ["hello", f"{FILE}look at notes.txt"])


def test_a_file_that_appears_between_two_looks_goes_with_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_is_there", lambda path: False)
    assert look_up("see @notes.txt", ["notes.txt"]).words == "see notes.txt"


async def test_a_pasted_mark_that_comes_back_reads_no_file_either(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await paste(shown, "see @notes.txt")
        await shown.pilot.press("enter")
        await until_sent(shown, lambda: shown.chat.sent == ["see @notes.txt"])
        await shown.pilot.press("up")
        await shown.until(lambda: shown.screen.prompt.text == "see @notes.txt")
        await shown.pilot.press("enter")
        await until_sent(shown, lambda: len(shown.chat.sent) == 2)
        assert shown.chat.sent == ["see @notes.txt"] * 2
        await shown.until_shown("@notes.txt was pasted earlier")


async def test_what_is_attached_to_a_change_that_is_given_up_goes_with_the_next_message(
    tmp_path: Path,
) -> None:
    async with window(tmp_path, prepare=with_file, initial="Oslo") as shown:
        await shown.until(lambda: len(shown.questions) == 2)
        await shown.say("/edit")
        await shown.until(lambda: shown.screen.prompt.text == "What is it?")
        await paste(shown, "long " * 2000)
        await shown.until(lambda: len(shown.screen.composer.attachments) == 2)
        await shown.pilot.press("escape")
        await shown.until(lambda: shown.screen.revisions.editing is None)
        assert [one.name for one in shown.screen.composer.attachments] == ["pasted text"]


async def test_a_message_that_waits_for_a_file_does_not_become_a_change_begun_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = hold_look_up(monkeypatch)
    async with window(tmp_path, prepare=with_file, initial="Oslo") as shown:
        await shown.until(lambda: len(shown.questions) == 2)
        await burst(shown, "look at @notes.txt\n")
        await shown.say("/edit")
        await shown.until(lambda: shown.screen.revisions.editing is not None)
        gate.open()
        words = "enter sends it as the change"
        await shown.until(lambda: any(words in one.message for one in shown.app._notifications))
        assert shown.chat.sent == []
        assert shown.screen.prompt.text == "look at @notes.txt\nWhat is it?"


@pytest.mark.parametrize("route", ["up", "ctrl+r", "/edit"])
async def test_a_mark_in_a_message_of_an_earlier_run_reads_no_file(tmp_path: Path, route: str) -> None:
    def earlier(chat: ScriptedChat) -> None:
        chat.add_session("Oslo", [("see @notes.txt", "Two lines.")])

    async with window(tmp_path, prepare=earlier, initial="Oslo") as shown:
        await shown.until(lambda: len(shown.screen.prompt.messages) == len(shown.questions) == 1)
        if route == "/edit":
            await shown.say("/edit")
        else:
            await shown.pilot.press(route)
        if route == "ctrl+r":
            await shown.until_shown("earlier messages")
            await shown.pilot.press("enter")
        await shown.until(lambda: shown.screen.prompt.text == "see @notes.txt")
        await shown.pilot.press("enter")
        await until_sent(shown, lambda: bool(shown.chat.sent))
        assert shown.chat.sent == ["see @notes.txt"]
        told = [one.message for one in shown.app._notifications]
        assert any("@notes.txt" in words and "stands in an earlier message" in words for words in told)


async def test_a_mark_typed_in_this_run_reads_its_file_again_when_it_comes_back(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await burst(shown, "see @notes.txt now\n")
        await until_sent(shown, lambda: bool(shown.chat.sent))
        await shown.pilot.press("up")
        await shown.until(lambda: shown.screen.prompt.text == "see @notes.txt now")
        await shown.pilot.press("enter")
        await until_sent(shown, lambda: len(shown.chat.sent) == 2)
        assert shown.chat.sent == [f"{FILE}see notes.txt now"] * 2
