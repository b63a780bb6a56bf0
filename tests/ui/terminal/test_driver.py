"""What comes from the terminal is taken, whatever it is."""

from pathlib import Path
from time import sleep

import pytest

from kvchat.ui.terminal.driver import early_events
from tests.terminal import terminal as open_terminal


@pytest.mark.pure
def test_keys_pressed_before_the_window_are_events_and_sequences_are_left_out() -> None:
    found = list(early_events("hi?\x1b[A\x1bOP\r\x7fé\x01"))
    assert [event.key for event in found] == ["h", "i", "?", "enter", "backspace", "é"]
    assert "".join(event.character or "" for event in found if event.is_printable) == "hi?é"


@pytest.mark.tui
def test_bytes_that_are_no_text_leave_the_window_open_and_the_rest_typed(tmp_path: Path) -> None:
    with open_terminal(["-m", "tests.ui.run_scripted", str(tmp_path / "log")]) as shown:
        shown.until_shown("Ask anything")
        shown.type("half typed ")
        shown.until_shown("› half typed")
        shown.send(b"\xff")
        sleep(0.5)  # what comes together with it is lost
        shown.type("au lait")
        shown.until_shown("› half typed au lait")
        shown.type("\x1b[:1u")
        sleep(0.5)
        shown.type(" and more")
        shown.until_shown("au lait and more")
        shown.type("\x11")
        assert shown.exit_status() == 0
