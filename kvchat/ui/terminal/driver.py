"""Driver of the terminal that reads on behind bytes that cannot be read, events of keys pressed early, and
what a terminal can draw.
"""

import asyncio
import logging
import re
import signal
from collections.abc import Iterator
from time import monotonic
from typing import Any

from rich.segment import Segment
from textual import events
from textual.app import App
from textual.color import Color
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter

from kvchat.text.fit_text import drawable

log = logging.getLogger(__name__)

_MOST_ERRORS = 20
_WITHIN_S = 1.0
_NAMED = {"\r": "enter", "\t": "tab", "\x7f": "backspace", "\x11": "ctrl+q", "\x03": "ctrl+c"}
_SEQUENCE = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)


class TerminalDriver(LinuxDriver):
    """Starts Textual's reader again, which ends at bytes that are no UTF-8 and at sequences with a number too
    large. What was read together with them is lost. Reads the terminal's size in the event loop: a signal's
    handler may be cut off by the next one's, and would tell the older size last.

    Args:
        app: its `thread_failed` is called with what ends the reader again and again.
    """

    def __init__(self, app: App[Any], **values: Any) -> None:
        super().__init__(app, **values)
        self._told = app

    def start_application_mode(self) -> None:
        super().start_application_mode()
        read_size = signal.getsignal(signal.SIGWINCH)
        assert callable(read_size)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, read_size, signal.SIGWINCH, None)

    def run_input_thread(self) -> None:
        """Make events of what comes until the driver ends, or the terminal does."""
        errors_s: list[float] = []
        while not self.exit_event.is_set():
            try:
                super().run_input_thread()
            except OSError:
                return  # the terminal is gone; the process is told
            except Exception as error:
                log.warning("the terminal sent what cannot be read (%s)", type(error).__name__)
                errors_s = [*errors_s[-_MOST_ERRORS:], monotonic()]
                if len(errors_s) > _MOST_ERRORS and errors_s[-1] - errors_s[0] < _WITHIN_S:
                    self._told.call_later(self._told.thread_failed, error)  # type: ignore[attr-defined]
                    return


def early_events(typed: str) -> Iterator[events.Key]:
    """Yield the events of what was typed before the application was there; sequences are left out."""
    for character in _SEQUENCE.sub("", typed):
        if character in _NAMED:
            yield events.Key(_NAMED[character], character)
        elif character.isprintable():
            yield events.Key(character, character)


class EmojiFilter(LineFilter):
    """Makes each line drawable as it is drawn: what is stored, selected and copied stays as it is."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(drawable(text), style, control) for text, style, control in segments]
