"""ctrl+z puts the interface to sleep under a real shell, and `fg` brings it back with everything in it."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.terminal import SHELL, terminal

pytestmark = pytest.mark.tui

ASKED_LAST = b"\x1b[?2026$p"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_ctrl_z_gives_the_terminal_back_to_the_shell_and_fg_brings_the_interface_back(tmp_path: Path) -> None:
    with terminal(["-c", SHELL]) as shown:
        shown.until_shown("shell>")
        shown.type(f"{sys.executable} -m tests.ui.run_scripted {tmp_path / 'log'}\r")
        shown.until_shown("Ask anything")
        shown.type("half a question")
        shown.until_shown("half a question")
        shown.type("\x1a")
        shown.until_shown("Stopped")
        shown.type("echo the shell $((40 + 2)) answers\r")
        shown.until_shown("the shell 42 answers")
        num_received = len(shown.received)
        shown.type("fg\r")
        # Asked once the keys are its own again; before that its old picture may still be there.
        shown.until(lambda: shown.received.count(ASKED_LAST) == 2)
        shown.until_shown("› half a question")
        shown.until(lambda: b"Ask anything" in shown.received[num_received:])
        num_received = len(shown.received)
        shown.type("\x0c")
        shown.until(lambda: b"Ask anything" in shown.received[num_received:])
        shown.type("\r")
        shown.until_shown("By train, and then")
        shown.until_shown("38 tok/s · exact")
        shown.type("\x11")
        shown.until(lambda: shown.received.count(b"shell> ") == 4)
        shown.type("echo status $?; exit\r")
        shown.until_shown("status 0")
        assert shown.exit_status() == 0
