"""SIGINT, SIGTERM and SIGHUP: the first stops the model and saves what there is, the second ends at once."""

import os
import signal
from collections.abc import Callable
from threading import Thread
from types import FrameType
from typing import Any

_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(BaseException):
    """A signal came while there was nothing to stop gently. Not an Exception: nobody may swallow it."""


class StopSignals:
    """Watches for signals while an answer is on its way. Use in the main thread, as a context manager."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._stop: Callable[[], None] | None = None
        self._before: list[tuple[signal.Signals, Any]] = []

    @property
    def exit_code(self) -> int | None:
        """128 + the number of the signal that came, None where none did."""
        return None if self._received is None else 128 + self._received

    def stop_with(self, stop: Callable[[], None] | None) -> None:
        """Call `stop` at a first signal from now on; None: raise StopRequested instead.

        Effect: a signal that is already here calls it at once.
        """
        self._stop = stop
        if stop is not None and self._received is not None:
            stop()

    def __enter__(self) -> "StopSignals":
        for number in _WATCHED:
            self._before.append((number, signal.signal(number, self._handle)))
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._received is not None:
            os._exit(128 + number)
        self._received = number
        if self._stop is None:
            raise StopRequested
        # In a thread of its own: the interrupted code may hold the very lock that stopping needs.
        Thread(target=self._stop, name="kvchat-stop", daemon=True).start()
