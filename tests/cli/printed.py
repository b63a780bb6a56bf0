"""What the real program prints into a pipe, and on a terminal of so many columns."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from io import StringIO

from tests.patience import PATIENCE_S


class Terminal(StringIO):
    """What is printed on a terminal by this process."""

    def isatty(self) -> bool:
        return True


def run_program(*words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run the real program in a process of its own, with variables of its own beside the usual ones."""
    return _run("-m", "kvchat", *words, **environ)


def run_python(program: str, *words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run lines of Python in a process of its own."""
    return _run("-c", program, *words, **environ)


def in_pipe(*words: str) -> list[str]:
    done = run_program(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _run(*words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | environ,
        timeout=PATIENCE_S,
        check=False,
    )


def on_terminal(width: int, *words: str) -> list[str]:
    """Return what the real program prints on a terminal of so many columns."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    command = [sys.executable, "-m", "kvchat", *words]
    with subprocess.Popen(command, stdin=inner, stdout=inner, stderr=subprocess.DEVNULL) as process:
        os.close(inner)
        printed = b"".join(iter(lambda: _read(outer), b""))
        assert process.wait() == 0
    os.close(outer)
    return printed.decode().splitlines()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the program has ended, and nobody else has the terminal
        return b""
