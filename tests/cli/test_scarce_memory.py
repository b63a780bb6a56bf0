"""Where there is too little memory for the engine the window stays, in a real terminal."""

import sys
from pathlib import Path

import pytest

from tests.terminal import terminal

pytestmark = [
    pytest.mark.tui,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is limited with RLIMIT_AS"),
]

LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, (700 << 20, 700 << 20))
sys.argv = ["kvchat"]
runpy.run_module("kvchat", run_name="__main__")
"""


def test_an_engine_that_finds_no_memory_leaves_the_window_and_what_is_typed(tmp_path: Path) -> None:
    with terminal(["-c", LIMITED], size=(120, 30), KVCHAT_HOME=str(tmp_path / "home")) as shown:
        shown.until_shown("You can type already.")
        shown.type("half a question")
        shown.until_shown("The engine has stopped. What was said is kept.")
        shown.until_shown("✗ the engine failed")
        shown.until_shown("› half a question")
        shown.type("\x15/reload\r")
        shown.type("another question")
        shown.until_shown("› another question")
        shown.until_shown("✗ the engine failed")
        shown.type("\x11")
        assert shown.exit_status() == 0
