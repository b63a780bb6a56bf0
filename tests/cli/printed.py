"""What the real program prints into a pipe, and on a terminal of so many columns."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios


def in_pipe(*words: str) -> list[str]:
    command = [sys.executable, "-m", "kvchat", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


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
