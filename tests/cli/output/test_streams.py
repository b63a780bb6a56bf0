"""Standard output carries what was asked for alone; nothing that is shown steers the terminal."""

import os
from io import StringIO

import pytest

from kvchat.cli.output.streams import Output, Status
from tests.cli.printed import Terminal

pytestmark = pytest.mark.pure


class ClosedEnd(StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.fixture(autouse=True)
def _a_terminal_that_can_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_characters_that_steer_are_kept_from_a_terminal_and_passed_to_a_file() -> None:
    text = "a\x1b[2Jb\x07c\u202ed\te\n"
    terminal, file = Terminal(), StringIO()
    Output(terminal).write(text)
    Output(file).write(text)
    assert terminal.getvalue() == "a[2Jbcd\te\n"
    assert file.getvalue() == text


def test_json_is_one_ascii_line() -> None:
    file = StringIO()
    Output(file).json({"text": "é\x1b\x9b\n"})
    assert file.getvalue() == '{"text": "\\u00e9\\u001b\\u009b\\n"}\n'


def test_a_closed_pipe_is_found_without_writing() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream:
        output = Output(stream)
        output.check()
        os.close(read_end)
        with pytest.raises(BrokenPipeError):
            output.check()


def test_the_moving_line_moves_on_terminals_only() -> None:
    terminal, file = Terminal(), StringIO()
    for stream in (terminal, file):
        status = Status(stream=stream)
        status.show("loading\x1b[2J")
        status.note("done")
    assert terminal.getvalue() == "\r\x1b[Kloading[2J\r\x1b[K\x1b[2mdone\x1b[0m\n"
    assert file.getvalue() == "done\n"


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    status = Status(stream=terminal)
    status.show("loading")
    status.note("done")
    assert terminal.getvalue() == "done\n"


def test_no_color_means_no_escape_sequence_in_lines_that_stay() -> None:
    terminal = Terminal()
    Status(stream=terminal, color=False).note("done")
    assert terminal.getvalue() == "done\n"


def test_quiet_says_nothing() -> None:
    terminal = Terminal()
    status = Status(stream=terminal, quiet=True)
    status.show("loading")
    status.aside("thinking")
    status.note("done")
    assert terminal.getvalue() == ""


def test_remarks_that_nobody_reads_stop_nothing() -> None:
    status = Status(stream=ClosedEnd())
    status.note("one")
    status.note("two")
