"""What comes from the terminal is taken, whatever it is; a thread that fails says so and loses nothing."""

from pathlib import Path

import pytest
from textual import events

from kvchat.ui.terminal.driver import DrawingFile, KeyReader
from tests.terminal import terminal as open_terminal

NONSENSE = ("\x1b[:1u", "\x1b[99999999999999u", "\x1b[204820268P")


def keys(reader: KeyReader, typed: str) -> str:
    found = [*reader.read(typed), *reader.end()]
    return "".join(event.character or "" for event in found if isinstance(event, events.Key))


@pytest.mark.pure
@pytest.mark.parametrize("sequence", NONSENSE)
def test_a_sequence_that_means_nothing_costs_no_key_beside_it(sequence: str) -> None:
    assert keys(KeyReader(), f"one{sequence}two") == "onetwo"


@pytest.mark.pure
def test_what_cannot_be_drawn_is_told_once_and_swallowed() -> None:
    class Broken:
        def write(self, text: str) -> int:
            raise ValueError("a bug")

        flush = None

    told: list[Exception] = []
    file = DrawingFile(Broken(), told.append)  # type: ignore[arg-type]
    assert [file.write("one"), file.write("three")] == [3, 5]
    file.flush()
    assert [str(error) for error in told] == ["a bug"]


@pytest.mark.tui
def test_bytes_that_are_no_text_leave_the_window_open_and_the_rest_typed(tmp_path: Path) -> None:
    with open_terminal(["-m", "tests.ui.run_scripted", str(tmp_path / "log")]) as shown:
        shown.until_shown("Say something.")
        shown.type("half typed ")
        shown.send(b"caf\xe9 au lait")
        shown.until_shown("› half typed caf� au lait")
        shown.type("\x1b[:1u and more")
        shown.until_shown("au lait and more")
        shown.type("\x11")
        assert shown.exit_status() == 0


FAILING = """
import logging, sys, threading
logging.basicConfig(filename=sys.argv[1])
from kvchat.ui.terminal.driver import KeyReader
from tests.ui import run_scripted

def fail(reader, typed):
    if "x" in typed:
        raise RuntimeError("a bug")
    return iter(())

KeyReader.read = fail
sys.exit(run_scripted.main())
"""


@pytest.mark.tui
def test_a_thread_that_fails_ends_the_window_with_a_message_and_a_status(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with open_terminal(["-c", FAILING, str(log)]) as shown:
        shown.until_shown("Say something.")
        shown.type("x")
        assert shown.exit_status() == 1
        shown.until_shown("kvchat: the interface failed;")
    assert "RuntimeError: a bug" in log.read_text()
