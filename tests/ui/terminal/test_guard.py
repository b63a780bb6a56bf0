"""The interface in a real terminal: real keys, real signals, real noise."""

import signal
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.terminal import Terminal
from tests.terminal import terminal as open_terminal

pytestmark = pytest.mark.tui


def terminal(
    log_path: Path, *, size: tuple[int, int] = (100, 30), early_keys: str = "", **variables: str
) -> AbstractContextManager[Terminal]:
    """Run the scripted interface in a terminal."""
    arguments = ["-m", "tests.ui.run_scripted", str(log_path)]
    return open_terminal(arguments, size=size, early_keys=early_keys, **variables)


def test_real_keys_send_a_message_and_leave(tmp_path: Path) -> None:
    leave = tmp_path / "the engine may load"
    with terminal(tmp_path / "log", SCRIPTED_LEAVE=str(leave)) as shown:
        shown.until_shown("You can type already.")
        leave.touch()
        shown.type("How do I get to Oslo?\r")
        shown.until_shown("By train, and then")
        shown.until_shown("38 tok/s · exact")
        shown.type("\x11")
        assert shown.exit_status() == 0


def test_keys_typed_before_the_program_runs_are_not_lost(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", early_keys="typed far too early\r") as shown:
        shown.until_shown("typed far too early  ›  main")
        shown.until_shown("By train")
        assert "› typed far too early" not in shown.text  # it was sent, and is not waiting in the prompt


def test_a_new_line_typed_right_after_the_start_is_a_new_line(tmp_path: Path) -> None:
    with terminal(tmp_path / "log") as shown:
        shown.until_shown("Say something.")
        shown.type("one\x0atwo\r")
        shown.until_shown("one two")
        assert "onetwo" not in shown.text


def test_noise_of_libraries_goes_to_the_log_and_not_to_the_screen(tmp_path: Path) -> None:
    log = tmp_path / "deep" / "log"
    with terminal(log) as shown:
        shown.type("go\r")
        shown.until_shown("38 tok/s · exact")
        shown.type("\x11")
        assert shown.exit_status() == 0
        assert b"NOISE" not in shown.received
    assert log.read_text().count("NATIVE NOISE") > 2
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_it_with_its_status_and_a_clean_terminal(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    with terminal(tmp_path / "log") as shown:
        shown.until_shown("Say something.")
        shown.type("go\r")
        shown.until_shown("By train")
        shown.process.send_signal(number)
        assert shown.exit_status() == status
        assert b"\x1b[?1049l" in shown.received


def test_it_follows_the_size_of_the_terminal(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", size=(150, 40)) as shown:
        shown.until_shown("one cell =")
        shown.resize(60, 20)
        shown.until(lambda: "one cell =" not in shown.text)
        shown.type("still here")
        shown.until_shown("› still here")
        assert "one cell =" not in shown.text


def test_it_has_the_size_of_the_terminal_whatever_the_environment_says(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", size=(150, 40), COLUMNS="80", LINES="24") as shown:
        shown.until_shown("one cell =")
        shown.resize(60, 20)
        shown.until(lambda: "one cell =" not in shown.text)
        assert max(map(len, shown.text.splitlines())) <= 60


def test_a_terminal_that_is_made_wider_before_the_window_is_drawn_is_filled(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", size=(80, 24)) as shown:
        shown.resize(150, 40)
        shown.until_shown("one cell =")
        assert max(map(len, shown.text.splitlines())) > 80


def test_no_color_draws_without_colours(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", NO_COLOR="1") as shown:
        shown.type("go\r")
        shown.until_shown("38 tok/s · exact")
        colours = [part for part in shown.received.split(b"\x1b[") if b"m" in part[:24]]
        assert not [part for part in colours if _has_hue(part.split(b"m")[0])]


def test_a_dumb_terminal_is_tolerated(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", TERM="dumb") as shown:
        shown.type("go\r")
        shown.until_shown("38 tok/s · exact")
        shown.type("\x11")
        assert shown.exit_status() == 0


def _has_hue(parameters: bytes) -> bool:
    """Return whether a colour setting is anything but grey."""
    numbers = [int(number) for number in parameters.split(b";") if number.isdigit()]
    for at in range(len(numbers) - 4):
        if numbers[at] in (38, 48) and numbers[at + 1] == 2:
            red, green, blue = numbers[at + 2 : at + 5]
            return max(red, green, blue) - min(red, green, blue) > 2
    return False


CRASHING = """
import logging, sys
logging.basicConfig(filename=sys.argv[1])
from tests.ui import run_scripted

def leave(app):
    words = "what " + "was said"
    raise RuntimeError("a bug")

run_scripted.KvchatApp.action_leave = leave
sys.exit(run_scripted.main())
"""


def test_a_bug_is_logged_without_the_values_of_variables(tmp_path: Path) -> None:
    """They are what was said, which no log may hold."""
    log = tmp_path / "log"
    with open_terminal(["-c", CRASHING, str(log)], SCRIPTED_LEAVE=str(tmp_path / "never")) as shown:
        shown.until_shown("You can type already.")
        shown.type("\x11")
        assert shown.exit_status() == 1
    written = log.read_text()
    assert "the interface failed" in written
    assert "RuntimeError: a bug" in written
    assert "what was said" not in written


EDITOR = """#!/bin/sh
test -t 1 || exit 3
printf 'written in the editor' > "$1"
"""


def test_the_editor_has_the_terminal_and_its_text_comes_back(tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text(EDITOR)
    editor.chmod(0o700)
    with terminal(tmp_path / "log", EDITOR=str(editor), VISUAL="", TMPDIR=str(tmp_path)) as shown:
        shown.until_shown("Say something.")
        shown.type("typed\x07")
        shown.until_shown("› written in the editor")
        assert not list(tmp_path.glob("kvchat-*"))
        shown.type("\x11")
        assert shown.exit_status() == 0


def test_an_answer_is_opened_in_the_editor_and_stays_as_it_is(tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/seen\nprintf changed > "$1"\n')
    editor.chmod(0o700)
    with terminal(tmp_path / "log", EDITOR=str(editor), VISUAL="", TMPDIR=str(tmp_path)) as shown:
        shown.type("go\r")
        shown.until_shown("38 tok/s · exact")
        shown.type("/open\r")
        shown.until(lambda: (tmp_path / "seen").exists())
        shown.until_shown("By train, and then")
        assert (tmp_path / "seen").read_text().startswith("By **train**, and then onwards")
        assert "changed" not in shown.text


def test_an_editor_that_is_not_there_is_named_and_the_text_stays(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", EDITOR="/no/such/editor", VISUAL="") as shown:
        shown.until_shown("Say something.")
        shown.type("typed\x07")
        shown.until_shown("the editor /no/such/editor is")
        shown.until_shown("› typed")
        assert shown.process.poll() is None


@pytest.mark.parametrize("is_told", [True, False])
def test_a_terminal_that_goes_away_ends_it_and_keeps_nothing_running(tmp_path: Path, is_told: bool) -> None:
    """Also where nobody says so: it would read the end of its input for ever, and wait to draw."""
    with terminal(tmp_path / "log") as shown:
        shown.until_shown("Say something.")
        shown.type("go\r")
        shown.until_shown("By train")
        shown.hang_up(is_told=is_told)
        assert shown.process.wait(PATIENCE_S) == 129


def test_a_window_that_leaves_since_its_terminal_went_away_is_not_ended_by_hearing_of_it_again(
    tmp_path: Path,
) -> None:
    with terminal(tmp_path / "log") as shown:
        shown.until_shown("Say something.")
        shown.hang_up()

        def has_ended() -> bool:
            shown.process.send_signal(signal.SIGHUP)
            return shown.process.poll() is not None

        shown.until(has_ended)
        assert shown.process.returncode == 129


def test_a_terminal_of_a_few_lines_shows_the_prompt(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", size=(30, 6)) as shown:
        shown.until(lambda: "›" in shown.text)
        shown.type("still here")
        shown.until_shown("› still here")
        shown.resize(12, 3)
        shown.resize(80, 24)
        shown.until_shown("› still here")
        assert shown.process.poll() is None


def test_a_window_needs_no_standard_output(tmp_path: Path) -> None:
    words = "[sys.executable, '-m', 'kvchat', '--remote', 'http://127.0.0.1:9', '-m', 'none']"
    program = f"import os, sys; os.close(1); os.execv(sys.executable, {words})"
    with open_terminal(["-c", program], KVCHAT_HOME=str(tmp_path)) as shown:
        shown.until_shown("Say something.")
        shown.type("\x11")
        assert shown.exit_status() == 0
