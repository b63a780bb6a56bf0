"""A program in a real terminal, read as fast as a terminal reads."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).parent.parent
SIZE = (140, 40)
PATIENCE_S = 180.0


class PseudoTerminal:
    """What is drawn is kept as bytes, since a terminal's own work is nobody's latency here."""

    def __init__(self, fd: int, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._fd = fd

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def read(self, timeout_s: float) -> bytes:
        """Return what was drawn, waiting for it at most so long."""
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return b""
        try:
            return os.read(self._fd, 1 << 16)
        except OSError:  # the program has ended
            return b""

    def drain(self, duration_s: float) -> None:
        """Read for a while, and throw away what comes."""
        end_s = perf_counter() + duration_s
        while (left_s := end_s - perf_counter()) > 0:
            self.read(left_s)

    def wait_for(self, *texts: str, patience_s: float = PATIENCE_S) -> float:
        """Read until one of the texts is drawn, and return how long that took."""
        wanted = [text.encode() for text in texts]
        start_s = perf_counter()
        seen = b""
        while not any(text in seen for text in wanted):
            if perf_counter() - start_s > patience_s or self.process.poll() is not None:
                raise TimeoutError(f"waited in vain for {texts}")
            seen += self.read(0.05)
        return perf_counter() - start_s


@contextmanager
def pseudo_terminal(arguments: Sequence[str], variables: Mapping[str, str]) -> Iterator[PseudoTerminal]:
    """Run Python with `arguments` in a terminal of its own; it is ended with the context."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm-256color", **variables},
        start_new_session=True,
    )
    os.close(inner)
    shown = PseudoTerminal(outer, process)
    try:
        yield shown
    finally:
        process.terminate()
        while process.poll() is None:
            shown.read(0.05)  # a program that draws waits for its terminal
        os.close(outer)
