"""How long a test waits for what has to come."""

from collections.abc import Callable
from time import monotonic, sleep

PATIENCE_S = 300.0
"""Nothing takes so long, however slow the machine is and however busy: a test that waits in vain has found a
hang.
"""


def wait_until(is_so: Callable[[], object], pause_s: float = 0.005) -> None:
    """Look again and again until something is so."""
    deadline_s = monotonic() + PATIENCE_S
    while not is_so():
        assert monotonic() < deadline_s, "it never came true"
        sleep(pause_s)
