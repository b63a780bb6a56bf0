"""The three standard streams of this process, whatever they are: closed, full, or without a reader.

What cannot be written is given up for good, so that the interpreter does not complain of it at its end.
"""

import codecs
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO
from unicodedata import normalize

from kvchat.platform.ascii_stand_ins import needs_ascii, stand_in

CLOSED_PIPE = 141


def occupy() -> None:
    """Give the numbers of streams that are closed to nothing, before a file gets one that libraries write to.

    Effect: remarks go nowhere where standard error is closed, and from a closed standard input nothing comes.
    Standard output stays none at all: what is asked for must not vanish in silence.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def soften() -> None:
    """Let nothing that is to be printed fail for want of a character in the encoding of where it goes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            soften_stream(stream)


def soften_stream(stream: TextIOWrapper) -> None:
    """Write what an encoding lacks in its simplest form: `…` as `...`, `é` as `e`, `─` as `-`, else `?`. A
    terminal whose locale is not UTF-8 gets ASCII.

    A byte of a file's name that is no text goes into a file or a pipe as it is, and is spelt out for a
    terminal, which it might steer.
    """
    keeps_bytes = not stream.isatty()

    def simplest(error: UnicodeError) -> tuple[bytes, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        due = error.object[error.start : error.end]
        return b"".join(_simplest(character, keeps_bytes=keeps_bytes) for character in due), error.end

    name = f"kvchat-{'bytes' if keeps_bytes else 'spelt'}"
    codecs.register_error(name, simplest)
    is_plain = not keeps_bytes and needs_ascii(os.environ)
    stream.reconfigure(encoding="ascii" if is_plain else None, errors=name)


def _simplest(character: str, *, keeps_bytes: bool) -> bytes:
    if "\udc80" <= character <= "\udcff":
        raw = ord(character) - 0xDC00
        return bytes([raw]) if keeps_bytes else f"\\x{raw:02x}".encode()
    return normalize("NFKD", character).encode("ascii", "ignore") or stand_in(character).encode()


def is_input_closed() -> bool:
    """Whether there was no standard input from the beginning, or is none any more."""
    return sys.stdin is None or sys.stdin.closed or getattr(sys.stdin, "name", None) == os.devnull


def complain(text: str) -> None:
    """Write a line to standard error; where nobody reads it, the exit code has to do."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _give_up(sys.stderr)


def flushed(code: int) -> int:
    """Flush both; return the exit code that is left, which tells of what could not be written."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except (OSError, ValueError) as error:
            _give_up(sys.stdout)
            if isinstance(error, BrokenPipeError):
                code = code or CLOSED_PIPE
            elif code == 0:
                reason = getattr(error, "strerror", None) or error
                complain(f"kvchat: standard output cannot be written ({reason})")
                code = 1
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        _give_up(sys.stderr)
    return code


def _give_up(stream: TextIO) -> None:
    """Send what a stream still holds nowhere."""
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
