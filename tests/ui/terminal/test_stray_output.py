"""The interface in a real terminal: real keys, real signals, real noise."""

import re
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.terminal import Terminal
from tests.terminal import terminal as open_terminal

pytestmark = pytest.mark.tui

LOOKS = {"0", "1", "3", "4", "7", "39", "49"}
"""Numbers for bold, italic, underlined and reversed text, and for the colours that are there anyway."""


def terminal(
    log_path: Path, *, size: tuple[int, int] = (100, 30), early_keys: str = "", **variables: str
) -> AbstractContextManager[Terminal]:
    """Run the scripted interface in a terminal."""
    arguments = ["-m", "tests.ui.run_scripted", str(log_path)]
    return open_terminal(arguments, size=size, early_keys=early_keys, **variables)


def test_real_keys_send_a_message_and_noise_of_libraries_goes_to_the_log_alone(tmp_path: Path) -> None:
    log, leave = tmp_path / "deep" / "log", tmp_path / "the engine may load"
    with terminal(log, SCRIPTED_LEAVE=str(leave)) as shown:
        shown.until_shown("You can type already.")
        leave.touch()
        shown.type("one\x0atwo\r")
        shown.until_shown("one two")  # two lines, which its title makes one
        shown.until_shown("By train, and then")
        shown.until_shown("38 tok/s · exact")
        shown.type("\x11")
        assert shown.exit_status() == 0
        assert b"NOISE" not in shown.received
    assert log.read_text().count("NATIVE NOISE") > 2
    assert log.stat().st_mode & 0o777 == 0o600


def test_keys_typed_before_the_program_runs_are_not_lost(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", early_keys="typed far too early\r") as shown:
        shown.until_shown("typed far too early  ›  main")
        shown.until_shown("By train")
        assert "› typed far too early" not in shown.text  # it was sent, and is not waiting in the prompt


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_it_with_its_status_and_a_clean_terminal(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    with terminal(tmp_path / "log") as shown:
        shown.until_shown("Ask anything")
        shown.type("go\r")
        shown.until_shown("By train")
        shown.process.send_signal(number)
        assert shown.exit_status() == status
        assert b"\x1b[?1049l" in shown.received


def test_it_follows_the_size_of_the_terminal_whatever_the_environment_says(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", size=(80, 24), COLUMNS="80", LINES="24") as shown:
        shown.resize(150, 40)  # before the window is drawn
        shown.until_shown("one cell =")
        assert max(map(len, shown.text.splitlines())) > 80
        shown.type("still here")
        shown.until_shown("› still here")
        shown.resize(60, 20)
        shown.until(lambda: "one cell =" not in shown.text)
        assert max(map(len, shown.text.splitlines())) <= 60
        shown.resize(30, 6)
        shown.until_shown("› still here")
        shown.resize(12, 3)
        shown.resize(80, 24)
        shown.until_shown("› still here")
        assert shown.process.poll() is None


def test_a_terminal_that_was_small_for_less_than_a_frame_is_painted_again(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", size=(80, 24)) as shown:
        shown.type("still here")
        shown.until_shown("› still here")
        for _ in range(10):
            shown.resize(12, 3)
            shown.resize(80, 24)
            shown.until(lambda: "› still here" in shown.text and "f1 help" in shown.text)


@pytest.mark.parametrize(
    ("variables", "colours"),
    [({"NO_COLOR": "1"}, set()), ({"TERM": "xterm"}, {"31", "32", "33", "30", "36", "47", "90"})],
    ids=["no colours", "16 colours"],
)
def test_with_few_colours_a_chosen_line_is_underlined_and_the_colours_are_the_terminals(
    tmp_path: Path, variables: dict[str, str], colours: set[str]
) -> None:
    with terminal(tmp_path / "log", **variables) as shown:
        shown.type("go\r")
        shown.until_shown("38 tok/s · exact")
        shown.type("/model\r")
        shown.until_shown("enter chooses")
        shown.until(lambda: b"\x1b[1;4" in shown.received)
        found = re.findall(rb"\x1b\[([\d;]*)m", shown.received)
        numbers = {number.decode() for one in found for number in one.split(b";")}
        assert numbers <= colours | LOOKS


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The column where a pane begins in a terminal that shows everything."""
    with terminal(tmp_path_factory.mktemp("wide") / "log", LC_ALL="C.UTF-8") as shown:
        shown.type("go\r")
        shown.until_shown("38 tok/s · exact")
        return next(line.index("│") for line in shown.text.splitlines() if "│" in line)


@pytest.mark.parametrize("said", [{"LANG": "C", "LC_ALL": ""}, {"LC_ALL": "POSIX"}, {"TERM": "dumb"}])
def test_a_terminal_that_shows_ascii_alone_gets_stand_ins_of_the_same_width(
    tmp_path: Path, edge: int, said: dict[str, str]
) -> None:
    with terminal(tmp_path / "log", **said) as shown:
        shown.type("go\r")
        shown.until_shown("38 tok/s . exact")
        assert shown.received.isascii()
        assert edge in [line.find("|") for line in shown.text.splitlines()]
        shown.type("\x11")
        assert shown.exit_status() == 0


FAILING = """
import logging, sys
logging.basicConfig(filename=sys.argv[1])
from textual.drivers.linux_driver import LinuxDriver
from tests.ui import run_scripted

def fail(self):
    words = "what " + "was said"
    raise RuntimeError("a bug")

{} = fail
sys.exit(run_scripted.main())
"""


@pytest.mark.parametrize(
    "place", ["run_scripted.KvchatApp.on_ready", "LinuxDriver.run_input_thread"], ids=["window", "thread"]
)
def test_a_bug_ends_the_window_and_is_logged_without_the_values_of_variables(
    tmp_path: Path, place: str
) -> None:
    """They are what was said, which no log may hold."""
    log = tmp_path / "log"
    with open_terminal(["-c", FAILING.format(place), str(log)]) as shown:
        assert shown.exit_status() == 1
        shown.until_shown("kvchat: the interface failed;")
    written = log.read_text()
    assert "RuntimeError: a bug" in written
    assert "what was said" not in written


EDITOR = """#!/bin/sh
test -t 1 || exit 3
cp "$1" "$0.seen"
printf 'written in the editor' > "$1"
"""


def test_the_editor_has_the_terminal_and_its_text_but_no_answer_comes_back(tmp_path: Path) -> None:
    editor, seen = tmp_path / "editor", tmp_path / "editor.seen"
    editor.write_text(EDITOR)
    editor.chmod(0o700)
    with terminal(tmp_path / "log", EDITOR=str(editor), VISUAL="", TMPDIR=str(tmp_path)) as shown:
        shown.until_shown("Ask anything")
        shown.type("typed\x07")
        shown.until_shown("› written in the editor")
        assert seen.read_text() == "typed"
        assert not list(tmp_path.glob("kvchat-*"))
        shown.type("\r")
        shown.until_shown("38 tok/s · exact")
        shown.type("/open\r")
        shown.until(lambda: seen.read_text().startswith("By **train**, and then onwards"))
        shown.until_shown("By train, and then onwards")
        editor.unlink()
        shown.type("typed\x07")
        shown.until_shown("EDITOR")
        shown.until_shown("› typed")
        assert shown.process.poll() is None


def test_a_terminal_that_goes_away_unheard_ends_it_and_keeps_nothing_running(tmp_path: Path) -> None:
    """It would read the end of its input for ever, and wait to draw."""
    with terminal(tmp_path / "log") as shown:
        shown.until_shown("Ask anything")
        shown.type("go\r")
        shown.until_shown("By train")
        shown.hang_up(is_told=False)
        assert shown.process.wait(PATIENCE_S) == 129


def test_hearing_again_that_the_terminal_is_gone_does_not_end_a_window_that_leaves(tmp_path: Path) -> None:
    with terminal(tmp_path / "log") as shown:
        shown.until_shown("Ask anything")
        shown.type("go\r")
        shown.until_shown("By train")
        shown.hang_up()

        def has_ended() -> bool:
            shown.process.send_signal(signal.SIGHUP)
            return shown.process.poll() is not None

        shown.until(has_ended)
        assert shown.process.returncode == 129


def test_a_window_needs_no_standard_output(tmp_path: Path) -> None:
    words = "[sys.executable, '-m', 'kvchat', '--remote', 'http://127.0.0.1:9', '-m', 'none']"
    program = f"import os, sys; os.close(1); os.execv(sys.executable, {words})"
    with open_terminal(["-c", program], KVCHAT_HOME=str(tmp_path)) as shown:
        shown.until_shown("Ask anything")
        shown.type("\x11")
        assert shown.exit_status() == 0
