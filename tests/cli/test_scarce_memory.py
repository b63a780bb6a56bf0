"""Where there is too little memory for the engine the window stays, in a real terminal."""

import signal
import sys
from pathlib import Path

import pytest

from tests.terminal import Terminal, terminal

pytestmark = [
    pytest.mark.tui,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is limited with RLIMIT_AS"),
]

LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, (900 << 20, 900 << 20))
sys.argv = ["kvchat"]
runpy.run_module("kvchat", run_name="__main__")
"""
MOST_TIMES = 8


def test_an_engine_that_finds_no_memory_leaves_the_window_and_what_is_typed(tmp_path: Path) -> None:
    """A thread of torch that finds no memory itself aborts the process, which nobody can prevent: then the
    window is opened again.
    """
    for number in range(MOST_TIMES):
        with terminal(["-c", LIMITED], size=(120, 30), KVCHAT_HOME=str(tmp_path / f"home{number}")) as shown:
            shown.until_shown("You can type already.")
            shown.type("half a question")
            shown.until(
                lambda shown=shown: (
                    "The engine has stopped. What was said is kept." in shown.text or is_aborted(shown)
                )
            )
            if is_aborted(shown):
                continue
            shown.until_shown("✗ the engine failed")
            shown.until_shown("› half a question")
            shown.type("\x15/reload\r")
            shown.type("another question")
            shown.until(lambda shown=shown: "› another question" in shown.text or is_aborted(shown))
            shown.until(lambda shown=shown: "✗ the engine failed" in shown.text or is_aborted(shown))
            if is_aborted(shown):
                continue
            shown.type("\x11")
            assert shown.exit_status() == 0
            return
    pytest.fail(f"torch has aborted the process {MOST_TIMES} times")


def is_aborted(shown: Terminal) -> bool:
    return shown.process.poll() == -signal.SIGABRT
