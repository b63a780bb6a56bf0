"""What goes with a message: files, long pastes; and what is found of earlier messages."""

from pathlib import Path

import pytest
from rich.cells import cell_len

from kvchat.errors import ContextOverflow
from kvchat.ui.state.conversation_tab import message_turn
from tests.ui.harness import talk, window
from tests.ui.scripted import Answer
from tests.ui.scripted_variants import ScriptedReading

pytestmark = pytest.mark.tui


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "place"
    (place / "deep").mkdir(parents=True)
    (place / "notes.txt").write_text("one\ntwo\n")
    (place / "deep" / "inner.md").write_text("# Inner")
    monkeypatch.chdir(place)
    return place


async def test_a_file_is_attached_by_its_path_read_ahead_and_sent_before_the_words(
    tmp_path: Path, notes: Path
) -> None:
    async with window(tmp_path) as shown:
        await shown.type("see @no")
        await shown.until_shown("notes.txt")
        await shown.pilot.press("tab")
        await shown.until_shown("▤ notes.txt · 7 B · 2 lines")
        await shown.until_shown("tokens, read")
        [reading] = shown.chat.variants.readings
        assert reading.text == '<file name="notes.txt" lines="2">\none\ntwo\n</file>\n\n'
        await shown.type("what is it?")
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.chat.sent == [f"{reading.text}see what is it?"])
        assert reading.handed_to == ["s1"]
        await shown.until_shown("▤ notes.txt · 7 B · 2 lines")
        assert "<file" not in shown.conversation_text


async def test_the_files_of_a_refused_message_are_attached_again_and_its_words_come_back(
    tmp_path: Path, notes: Path
) -> None:
    refusal = ContextOverflow("this conversation is full; start another with /new")
    async with window(tmp_path, Answer(fail=refusal)) as shown:
        await shown.type("@no")
        await shown.pilot.press("tab")
        await shown.until_shown("tokens, read")
        await shown.say("what is it?")
        await shown.until_shown("this conversation is full")
        await shown.until(lambda: shown.screen.prompt.text == "what is it?")
        await shown.until_shown("▤ notes.txt · 7 B · 2 lines")
        assert [one.text for one in shown.screen.composer.attachments] == ["one\ntwo"]
        assert shown.questions == []


async def test_the_attach_command_completes_and_backspace_takes_back(tmp_path: Path, notes: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("/attach n")
        await shown.until_shown("▸ notes.txt")
        await shown.pilot.press("enter")
        await shown.until_shown("▤ notes.txt")
        assert shown.screen.prompt.text == ""
        await shown.pilot.press("backspace")
        await shown.until_gone("▤ notes.txt")
        assert shown.chat.variants.readings[-1].is_stopped
        await shown.say("/attach notes.txt")
        await shown.until_shown("▤ notes.txt")
        await shown.say("/detach")
        await shown.until_gone("▤ notes.txt")


async def test_a_path_is_completed_through_directories_and_a_file_that_has_vanished_is_said_to_be_gone(
    tmp_path: Path, notes: Path
) -> None:
    async with window(tmp_path) as shown:
        await shown.type("@d")
        await shown.pilot.press("tab")
        assert shown.screen.prompt.text == "@deep/"
        await shown.pilot.press("tab")
        await shown.until_shown("▤ inner.md")
        assert shown.screen.prompt.text == ""
        await shown.type("@no")
        await shown.until_shown("notes.txt")
        (notes / "notes.txt").unlink()
        await shown.pilot.press("tab")
        await shown.until_shown("is not there; name a text file")
        assert "▤ notes.txt" not in shown.text


async def test_a_long_paste_becomes_an_attachment_whose_commands_are_never_run(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("look: ")
        await shown.paste("/quit of it\n" * 100_000)
        await shown.until_shown("▤ pasted text · 1.1 MiB · 100,000 lines")
        assert shown.screen.prompt.text == "look: "
        await shown.paste("/quit")
        await shown.pilot.press("enter")
        await shown.until(lambda: bool(shown.chat.sent))
        assert shown.chat.sent[0].endswith("</file>\n\nlook: /quit")
        assert shown.app.is_running


async def test_pasted_binary_is_refused(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        await shown.type("before ")
        for junk in ("\x00\x01\x02ELF", "\x7fELF\x02\x01\x01" + "\x03\x08\ufffd" * 40):
            shown.app.clear_notifications()
            await shown.paste(junk)
            await shown.until_told("nothing was pasted: that is no text")
        assert shown.screen.prompt.text == "before "


async def test_earlier_messages_are_found_by_words_also_those_of_other_sessions(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=talk) as shown:
        await shown.until(lambda: len(shown.screen.prompt.messages) == 2)
        for ask in (shown.pilot.press("ctrl+r"), shown.say("/history")):
            await ask
            await shown.until_shown("earlier messages")
            await shown.type("boat")
            await shown.until_gone("How long?")
            await shown.pilot.press("enter")
            await shown.until(lambda: shown.screen.prompt.text == "By boat?")
            shown.screen.prompt.set_text("")
        assert shown.chat.sent == []


async def test_wide_and_right_to_left_text_keeps_the_window_in_order(tmp_path: Path) -> None:
    async with window(tmp_path, size=(80, 24)) as shown:
        await shown.say_and_wait(" ".join(["漢字かな交じり文 שלום עולם مرحبا"] * 5))
        assert max(cell_len(line) for line in shown.text.splitlines()) <= 80
        assert "漢字かな" in shown.text
        assert "שלום" in shown.text


async def test_what_was_read_for_a_queued_message_is_let_go_when_the_queue_is_emptied(tmp_path: Path) -> None:
    async with window(tmp_path) as shown:
        reading = ScriptedReading("one two")
        shown.screen.turns.add(message_turn("why?", reading))
        assert shown.screen.turns.stop() == "why?"
        assert reading.is_stopped
