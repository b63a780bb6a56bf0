"""How often functions are called: work is counted instead of timed."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def counted_calls(*functions: Callable[..., Any]) -> Iterator[Counter[str]]:
    """Yield the number of calls of each function by its name; nothing is replaced."""
    codes = {function.__code__ for function in functions}
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in codes:
            calls[frame.f_code.co_name] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
