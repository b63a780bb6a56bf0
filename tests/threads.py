"""Where another thread is, for tests in which it has to wait for something."""

import sys
from threading import Thread
from time import monotonic, sleep
from types import FrameType

from tests.patience import PATIENCE_S


def wait_until_in(thread: Thread, function: str) -> None:
    """Wait until a thread is inside a function of this name, where what it waits for keeps it."""
    end_s = monotonic() + PATIENCE_S
    while function not in _functions_of(thread):
        assert thread.is_alive(), f"it ended without having been in {function}"
        assert monotonic() < end_s, f"it is in {_functions_of(thread)}"
        sleep(0.001)


def _functions_of(thread: Thread) -> list[str]:
    """Return the names of the functions that a thread is in, the innermost first."""
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names
