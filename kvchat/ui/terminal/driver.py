"""Textual's link to the terminal, which takes whatever bytes come and tells the app when it fails.

Textual's own ends its input thread at the first byte that is no UTF-8, or at a sequence with a number too
large, and the window with it.
"""

import logging
import os
import selectors
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TextIO

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

log = logging.getLogger(__name__)

_POLL_S = 0.1
_READ_BYTES = 4096


class KeyReader:
    """Makes events of what a terminal sends. A sequence that means nothing is left out, alone."""

    def __init__(self) -> None:
        self._parser = XTermParser()

    def read(self, typed: str) -> Iterator[Message]:
        for character in typed:
            yield from self._parsed(self._parser.feed(character))

    def tick(self) -> Iterator[Message]:
        """Yield what was held back in case more came, such as a lone escape."""
        yield from self._parsed(self._parser.tick())

    def end(self) -> Iterator[Message]:
        """Yield what is left when nothing comes any more."""
        no_more = ""
        yield from self._parsed(self._parser.feed(no_more))

    def _parsed(self, events: Iterable[Message]) -> Iterator[Message]:
        try:
            yield from events
        except Exception as error:  # it has ended the parser
            log.warning("the terminal sent a sequence that cannot be read (%s)", type(error).__name__)
            before, self._parser = self._parser, XTermParser()
            self._parser.mouse_pixels = before.mouse_pixels
            self._parser.terminal_size = before.terminal_size
            self._parser.terminal_pixel_size = before.terminal_pixel_size


class TerminalDriver(LinuxDriver):
    """Draws on the terminal and reads it, each in a thread whose failure reaches `App.thread_failed`."""

    def __init__(
        self, app: Any, *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        assert self._file is not None
        self._file = DrawingFile(self._file, self._fail)  # type: ignore[assignment]
        self._size = size or self._get_terminal_size()

    def run_input_thread(self) -> None:
        """Make events of what comes until the driver ends, or the terminal does."""
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        reader = KeyReader()
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            is_last = False
            while not is_last:
                is_last = self.exit_event.is_set()  # what was typed until then still counts
                if selector.select(_POLL_S):
                    data = os.read(self.fileno, _READ_BYTES)
                    if not data:
                        break
                    self._process(reader.read(decoder.decode(data)))
                self._process(reader.tick())
        self._process(reader.end())

    def _get_terminal_size(self) -> tuple[int, int]:
        """Ask the terminal. Textual believes COLUMNS and LINES first, which some programs export: the window
        would keep that size whatever becomes of the terminal.
        """
        with suppress(OSError):
            size = os.get_terminal_size(self.fileno)
            if size.columns and size.lines:
                return size
        return super()._get_terminal_size()

    def _process(self, events: Iterable[Message]) -> None:
        for event in events:
            self.process_message(event)

    def _run_input_thread(self) -> None:
        try:
            self.run_input_thread()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._app.call_later(self._app.thread_failed, error)  # type: ignore[attr-defined]


class DrawingFile:
    """What Textual's output thread writes to. Ended by an error, that thread would let its queue fill up and
    the interface wait for room in it for ever; so the error is told, and what follows is swallowed.

    Args:
        failed: called with the first error, in the thread that writes.
    """

    def __init__(self, file: TextIO, failed: Callable[[Exception], object]) -> None:
        self._file = file
        self._failed = failed
        self._is_broken = False

    def write(self, text: str) -> int:
        self._try(lambda: self._file.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._file.flush)

    def fileno(self) -> int:
        return self._file.fileno()

    def _try(self, action: Callable[[], object]) -> None:
        if self._is_broken:
            return
        try:
            action()
        except Exception as error:
            self._is_broken = True
            self._failed(error)
