"""The interface in a real terminal: real keys, real signals, real noise."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pyte
import pytest

pytestmark = pytest.mark.tui

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, fd: int, process: "subprocess.Popen[bytes]", size: tuple[int, int]) -> None:
        self.process = process
        self.received = b""
        self._fd = fd
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._screen.resize(lines, columns)
        self.process.send_signal(signal.SIGWINCH)

    def until(self, predicate: Callable[[], bool]) -> None:
        deadline = monotonic() + PATIENCE_S
        while not predicate():
            assert monotonic() < deadline, f"waited in vain; the terminal shows:\n{self.text}"
            self._read(0.05)

    def until_shown(self, text: str) -> None:
        self.until(lambda: text in self.text)

    def exit_status(self) -> int:
        """Wait for the program to end."""
        self.until(lambda: self.process.poll() is not None)
        return self.process.returncode

    def _read(self, timeout_s: float) -> None:
        if select.select([self._fd], [], [], timeout_s)[0]:
            try:
                data = os.read(self._fd, 65_536)
            except OSError:
                return
            self.received += data
            # Pyte knows neither the keyboard protocol nor the queries that Textual sends.
            self._stream.feed(_known_to_pyte(data))


def _known_to_pyte(data: bytes) -> bytes:
    for unknown in (b"\x1b[>1u", b"\x1b[<u", b"\x1b[>4;1m", b"\x1b[>4m"):
        data = data.replace(unknown, b"")
    return data


@contextmanager
def terminal(
    log_path: Path, *, size: tuple[int, int] = (100, 30), early_keys: str = "", **variables: str
) -> Iterator[Terminal]:
    """Run the scripted interface in a pseudo-terminal; `early_keys` are typed before it starts."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    os.write(outer, early_keys.encode())
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ui.run_scripted", str(log_path)],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm-256color", **variables},
        start_new_session=True,
    )
    os.close(inner)
    try:
        yield Terminal(outer, process, size)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(outer)


def test_real_keys_send_a_message_and_leave(tmp_path: Path) -> None:
    with terminal(tmp_path / "log") as shown:
        shown.until_shown("You can type already.")
        shown.type("How do I get to Oslo?\r")
        shown.until_shown("By train, and then")
        shown.until_shown("38 tok/s · exact")
        shown.type("\x11")
        assert shown.exit_status() == 0


def test_keys_typed_before_the_program_runs_are_not_lost(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", early_keys="typed far too early\r") as shown:
        shown.until_shown("typed far too early  ›  main")
        shown.until_shown("By train")


def test_noise_of_libraries_goes_to_the_log_and_not_to_the_screen(tmp_path: Path) -> None:
    log = tmp_path / "deep" / "log"
    with terminal(log) as shown:
        shown.type("go\r")
        shown.until_shown("38 tok/s · exact")
        shown.type("\x11")
        assert shown.exit_status() == 0
        assert b"NOISE" not in shown.received
    assert log.read_text().count("NATIVE NOISE") > 2
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_it_with_its_status_and_a_clean_terminal(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    with terminal(tmp_path / "log") as shown:
        shown.until_shown("Say something.")
        shown.type("go\r")
        shown.until_shown("By train")
        shown.process.send_signal(number)
        assert shown.exit_status() == status
        assert b"\x1b[?1049l" in shown.received


def test_it_follows_the_size_of_the_terminal(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", size=(150, 40)) as shown:
        shown.until_shown("one cell =")
        shown.resize(60, 20)
        shown.until(lambda: "one cell =" not in shown.text)
        shown.type("still here")
        shown.until_shown("› still here")


def test_no_color_draws_without_colours(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", NO_COLOR="1") as shown:
        shown.type("go\r")
        shown.until_shown("38 tok/s · exact")
        colours = [part for part in shown.received.split(b"\x1b[") if b"m" in part[:24]]
        assert not [part for part in colours if _has_hue(part.split(b"m")[0])]


def test_a_dumb_terminal_is_tolerated(tmp_path: Path) -> None:
    with terminal(tmp_path / "log", TERM="dumb") as shown:
        shown.type("go\r")
        shown.until_shown("38 tok/s · exact")
        shown.type("\x11")
        assert shown.exit_status() == 0


def _has_hue(parameters: bytes) -> bool:
    """Return whether a colour setting is anything but grey."""
    numbers = [int(number) for number in parameters.split(b";") if number.isdigit()]
    for at in range(len(numbers) - 4):
        if numbers[at] in (38, 48) and numbers[at + 1] == 2:
            red, green, blue = numbers[at + 2 : at + 5]
            return max(red, green, blue) - min(red, green, blue) > 2
    return False
