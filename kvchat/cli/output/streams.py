"""Standard output, which carries what was asked for alone, and standard error, which carries the rest."""

import json
import os
import re
import select
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TextIO

from kvchat.cli.output.wrap import beside, fold
from kvchat.errors import StorageError
from kvchat.text.fit_text import clean_text


class Output:
    """Standard output. Everything is flushed as it comes.

    Raises:
        BrokenPipeError: from every method that writes, once nobody reads any more.
        StorageError: from the same, where it is closed, or a file that cannot be written.

    Attributes:
        has_ended: the last event of an answer was written.
        width: of the terminal in cells; None where it is none, and lines are as long as they are.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        # None where standard output was closed from the beginning.
        self._stream: TextIO | None = sys.stdout if stream is None else stream
        self.is_terminal = self._stream is not None and self._stream.isatty()
        self.width = _terminal_width(self._stream) if self._stream is not None and self.is_terminal else None
        self.has_ended = False

    def write(self, text: str) -> None:
        """Write text; for a terminal without the characters that would steer it."""
        with self._told() as stream:
            stream.write(clean_text(text) if self.is_terminal else text)
            stream.flush()

    def data(self, data: bytes) -> None:
        """Write bytes as they are."""
        with self._told() as stream:
            stream.buffer.write(data)
            stream.buffer.flush()

    def line(self, text: str = "") -> None:
        self.write(text + "\n")

    def folded(self, text: str, indent: int) -> None:
        """Write a line; on a terminal that is narrower as several, all but the first indented."""
        for line in [text] if self.width is None else fold(text, self.width, indent):
            self.line(line)

    def columns(self, rows: Sequence[tuple[str, str]], **layout: int) -> None:
        """Write rows as a table of two columns, see `beside`; on a narrow terminal some are several lines."""
        for line in beside(rows, self.width, **layout):
            self.line(line)

    def json(self, value: object) -> None:
        """Write a value as one line of JSON; ASCII, so that nothing in it can steer a terminal."""
        self.line(json.dumps(value))

    def end(self, event: object) -> None:
        """Write the last event of an answer: there is exactly one, whatever comes after it."""
        self.json(event)
        self.has_ended = True

    def check(self) -> None:
        """Find out that nobody reads any more, without writing."""
        if self._stream is not None and is_abandoned(self._stream):
            raise BrokenPipeError

    @contextmanager
    def _told(self) -> Iterator[TextIO]:
        if self._stream is None:
            raise StorageError("standard output is closed, so nothing can be printed")
        try:
            yield self._stream
        except BrokenPipeError:
            raise
        except OSError as error:
            reason = error.strerror or error
            raise StorageError(
                f"standard output cannot be written ({reason}); make room, or print elsewhere"
            ) from error


class Wanted(Protocol):
    """How what was asked for is to be printed."""

    @property
    def quiet(self) -> bool: ...

    @property
    def json(self) -> bool: ...

    @property
    def ndjson(self) -> bool: ...


def as_json(wanted: Wanted) -> bool:
    """Return whether a program reads it: one thing is the same line of JSON in both forms."""
    return wanted.json or wanted.ndjson


def written_as_json(wanted: Wanted, output: Output, rows: Iterable[object]) -> bool:
    """Write rows as one list or as a line each, if that was asked for; return whether it was."""
    if wanted.ndjson:
        for row in rows:
            output.json(row)
    elif wanted.json:
        output.json(list(rows))
    return as_json(wanted)


def tell(wanted: Wanted, values: object, *lines: str) -> None:
    """Print values as JSON where a program reads them, else lines for people."""
    output = Output()
    if as_json(wanted):
        output.json(values)
        return
    for line in lines:
        output.line(line)


def tell_done(wanted: Wanted, values: object, *notes: str) -> None:
    """Print what was done as JSON where a program reads it, else as notes on standard error."""
    if as_json(wanted):
        Output().json(values)
        return
    status = Status(quiet=wanted.quiet)
    for words in notes:
        status.note(words)


class Status:
    """Standard error: notes that stay, and on a terminal one line that moves.

    Args:
        quiet: write nothing at all.
    """

    def __init__(
        self, *, quiet: bool = False, color: bool | None = None, stream: TextIO | None = None
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        is_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._moves = is_terminal and not quiet
        self._color = is_terminal and color is not False
        self._shown = False

    def show(self, text: str) -> None:
        """Replace the moving line. Nothing happens where there is no terminal."""
        if self._moves:
            width = max(20, _terminal_width(self._stream) - 1)
            self._emit("\r\x1b[K" + clean_text(text)[:width])
            self._shown = True

    def clear(self) -> None:
        """Take the moving line away, so that something else can be written on its place."""
        if self._shown:
            self._emit("\r\x1b[K")
            self._shown = False

    def note(self, text: str) -> None:
        """Write a line that stays."""
        self.aside(text, end="\n")

    def aside(self, text: str, end: str = "") -> None:
        """Write a piece of running text, such as a model's reasoning."""
        self.clear()
        if not self._quiet:
            text = clean_text(text)
            self._emit((f"\x1b[2m{text}\x1b[0m" if self._color else text) + end)

    def _emit(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._quiet = True  # nobody listens to remarks; the answer goes on
            self._moves = False


def is_abandoned(stream: TextIO) -> bool:
    """Return whether the reading end of a pipe is closed."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
    except (OSError, ValueError):  # no descriptor: nothing that could be closed
        return False


def _terminal_width(stream: TextIO) -> int:
    """Return the width of a terminal; of one that does not tell it what COLUMNS says, else the usual one."""
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        width = 0
    said = os.environ.get("COLUMNS", "")
    return width or (int(said) if re.fullmatch(r"[1-9]\d{0,5}", said, re.ASCII) else 80)
