"""Keeps everything but the interface off the screen while it runs.

Textual draws on stderr. Libraries under the engine write there too, some of them from native code that knows
nothing of `sys.stderr`. So the interface gets a private copy of the terminal, and the process's own stdout
and stderr go to the log file until the interface ends.
"""

import fcntl
import io
import os
import select
import signal
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TextIO

from kvchat.platform.ascii_stand_ins import in_ascii, needs_ascii
from kvchat.platform.private_files import make_private

_STDIN_FD = 0
_STDOUT_FD = 1
_STDERR_FD = 2
_DUMB = ("", "dumb", "unknown")


@contextmanager
def guarded_terminal(log_path: Path, failed: Callable[[Exception], object]) -> Iterator[None]:
    """Send stray writes to `log_path` and leave the terminal to the interface alone.

    Effect: file descriptors 1 and 2 point to the log and `sys.__stdout__`, `sys.__stderr__` to the terminal
    until the context ends. A stdout that is not a terminal (a pipe, a file) is left alone.

    Args:
        failed: called in the thread that draws, with the first error that is not the terminal's.
    """
    with ExitStack() as stack:
        terminal = stack.enter_context(_Terminal(os.dup(_STDERR_FD), failed))
        make_private(log_path.parent)
        log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, log_fd)
        stack.enter_context(_descriptor_to(_STDERR_FD, log_fd))
        if os.isatty(_STDOUT_FD):
            stack.enter_context(_descriptor_to(_STDOUT_FD, log_fd))
        stack.enter_context(_drawing_on(terminal))
        yield


class _Terminal(io.TextIOWrapper):
    """What the interface draws on. Where it has gone away, or fails, it takes everything and shows nothing:
    Textual's thread that writes would end with an error, and its queue stop the interface for ever.
    """

    def __init__(self, fd: int, failed: Callable[[Exception], object]) -> None:
        self._failed = failed
        self._needs_ascii = needs_ascii(os.environ)
        super().__init__(
            os.fdopen(fd, "wb"), encoding="utf-8", errors="replace", line_buffering=os.isatty(fd)
        )

    def write(self, text: str) -> int:
        try:
            return super().write(in_ascii(text) if self._needs_ascii else text)
        except OSError:
            self._let_go()
        except Exception as error:
            self._let_go()
            self._failed(error)
        return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self._let_go()

    def _let_go(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)


@contextmanager
def hang_up_told() -> Iterator[None]:
    """Send this process SIGHUP when its terminal goes away; the system tells the leader of its session alone.

    Without it Textual would read the end of its input for ever, as fast as it can.
    """
    if not os.isatty(_STDERR_FD):
        yield
        return
    watched = os.dup(_STDERR_FD)
    ended, end = os.pipe()
    watcher = Thread(target=_tell_of_hang_up, args=(watched, ended), name="kvchat-terminal", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.write(end, b".")
        watcher.join()
        for fd in (watched, ended, end):
            os.close(fd)


def _tell_of_hang_up(terminal_fd: int, ended_fd: int) -> None:
    poll = select.poll()
    poll.register(terminal_fd, 0)  # errors and the end are told without being asked for
    poll.register(ended_fd, select.POLLIN)
    happened = dict(poll.poll())
    # Some systems cannot wait for a terminal: there it is not watched.
    if happened.get(terminal_fd, 0) & (select.POLLHUP | select.POLLERR):
        os.kill(os.getpid(), signal.SIGHUP)


@contextmanager
def key_by_key() -> Iterator[str]:
    """Have the terminal hand over keys as they are pressed, and yield what was typed before.

    Until then the terminal edits lines by itself and makes every enter a newline, which is another key here.
    """
    if not os.isatty(_STDIN_FD):
        yield ""
        return
    saved = termios.tcgetattr(_STDIN_FD)
    changed = list(saved)
    changed[0] &= ~termios.ICRNL
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(_STDIN_FD, termios.TCSANOW, changed)
    try:
        yield _pending_input().replace("\n", "\r")
    finally:
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(_STDIN_FD, termios.TCSANOW, saved)


def _pending_input() -> str:
    (num_bytes,) = struct.unpack("i", fcntl.ioctl(_STDIN_FD, termios.FIONREAD, bytes(4)))
    return os.read(_STDIN_FD, num_bytes).decode(errors="replace") if num_bytes else ""


@contextmanager
def _descriptor_to(fd: int, target_fd: int) -> Iterator[None]:
    """Point `fd` at `target_fd`, and back at the end."""
    saved_fd = os.dup(fd)
    try:
        os.dup2(target_fd, fd)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # closed from the beginning
                stream.flush()
        os.dup2(saved_fd, fd)
        os.close(saved_fd)


@contextmanager
def _drawing_on(terminal: TextIO) -> Iterator[None]:
    """Give Textual the terminal: it draws on `sys.__stderr__` and asks `sys.__stdout__` for the size."""
    saved = sys.__stdout__, sys.__stderr__
    sys.__stdout__ = sys.__stderr__ = terminal  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        sys.__stdout__, sys.__stderr__ = saved  # type: ignore[misc]


@contextmanager
def size_of_terminal() -> Iterator[None]:
    """Make an application that takes its size from the terminal alone.

    Textual asks both Rich and the terminal, and resizes itself for ever where they differ. Rich takes a dumb
    terminal for 80 x 25, so it gets another name for a while; it is read once, when the application is made.
    COLUMNS and LINES, which some programs export, go for good: both are read again later.
    """
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    term = os.environ.get("TERM", "")
    if term not in _DUMB:
        yield
        return
    os.environ["TERM"] = "vt100"
    try:
        yield
    finally:
        os.environ["TERM"] = term
