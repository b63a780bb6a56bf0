"""A real terminal with a program in it: keys go in, and what is on the screen can be read."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pyte

from tests.fork_server import Forked, interface_server
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
SCRIPTED = "tests.ui.run_scripted"
"""What is forked by one that has imported it."""
SHELL = """
import fcntl, os, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.environ["PS1"] = "shell> "
os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
"""
"""A program that becomes an interactive shell, in control of the terminal it is in."""


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, fd: int, process: "subprocess.Popen[bytes] | Forked", size: tuple[int, int]) -> None:
        self.process = process
        self.received = b""
        self._fd = fd
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def unbroken(self) -> str:
        """What is shown, with lines that were broken at the edge put together."""
        return "".join(self._screen.display)

    def type(self, keys: str) -> None:
        self.send(keys.encode())

    def send(self, data: bytes) -> None:
        os.write(self._fd, data)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._screen.resize(lines, columns)
        self.process.send_signal(signal.SIGWINCH)

    def until(self, predicate: Callable[[], bool]) -> None:
        deadline = monotonic() + PATIENCE_S
        while not predicate():
            assert monotonic() < deadline, f"waited in vain; the terminal shows:\n{self.text}"
            has_ended = self.process.poll() is not None
            if not self._read(0.05) and has_ended and not predicate():
                raise AssertionError(f"the program has ended; the terminal shows:\n{self.text}")

    def until_shown(self, text: str) -> None:
        self.until(lambda: text in self.text)

    def exit_status(self) -> int:
        """Wait for the program to end."""
        self.until(lambda: self.process.poll() is not None)
        assert self.process.returncode is not None
        return self.process.returncode

    def hang_up(self, *, is_told: bool = True) -> None:
        """Let the terminal vanish, as when its window is closed; `is_told`: the program gets the signal."""
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, self._fd)
        os.close(null)
        if is_told:
            self.process.send_signal(signal.SIGHUP)

    def _read(self, timeout_s: float) -> bool:
        """Take in what the program has written; return whether there was anything."""
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return False
        try:
            data = os.read(self._fd, 65_536)
        except OSError:
            return False
        self.received += data
        # Pyte knows neither the keyboard protocol nor the queries that Textual sends.
        self._stream.feed(_known_to_pyte(data))
        return bool(data)


def _known_to_pyte(data: bytes) -> bytes:
    for unknown in (b"\x1b[>1u", b"\x1b[<u", b"\x1b[>4;1m", b"\x1b[>4m"):
        data = data.replace(unknown, b"")
    return data


@contextmanager
def terminal(
    arguments: Sequence[str], *, size: tuple[int, int] = (100, 30), early_keys: str = "", **variables: str
) -> Iterator[Terminal]:
    """Run Python with `arguments` in a pseudo-terminal; `early_keys` are typed before it starts."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    os.write(outer, early_keys.encode())
    environ = {**os.environ, "TERM": "xterm-256color", **variables}
    if arguments[:2] == ["-m", SCRIPTED]:
        process = interface_server().start_module(SCRIPTED, arguments[2:], environ, [inner] * 3)
    else:
        command, streams = [sys.executable, *arguments], {"stdin": inner, "stdout": inner, "stderr": inner}
        process = subprocess.Popen(command, **streams, cwd=ROOT, env=environ, start_new_session=True)
    os.close(inner)
    try:
        yield Terminal(outer, process, size)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(outer)
