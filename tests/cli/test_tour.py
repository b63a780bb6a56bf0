"""The tour of README.md and its docs pages, walked through in a real terminal with the starter model."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.terminal import ROOT, SHELL, Terminal, terminal

pytestmark = pytest.mark.tui

NOTES = (
    "The garden is quiet in the morning. The passkey is 48213.\n"
    "The gate code is 7719. My dog is called Rex.\n"
)
NAME = "Your name is Ana."


class Walk:
    """A person at a shell."""

    def __init__(self, shown: Terminal) -> None:
        self.shown = shown
        self._num_commands = 0

    def command(self, line: str, *answers: str) -> None:
        """Run a command, wait for its end, and look at what it said."""
        self._num_commands += 1
        end = f"ended {self._num_commands}"
        self.shown.type(f"clear; {line}; echo ended '{self._num_commands}'\r")
        self.shown.until(lambda: end in self.shown.text)
        for answer in answers:
            assert answer in _joined(self.shown.text), self.shown.text

    def opens(self, line: str, text: str) -> None:
        """Open the interface."""
        self.shown.type(f"clear; {line}\r")
        self.shown.until_shown(text)
        self.shown.until(lambda: "tok/s" in self.shown.text and "loading" not in self.shown.text)

    def says(self, text: str, answer: str) -> None:
        self.shown.type(f"{text}\r")
        self.shown.until(lambda: answer in _joined(self.shown.text))
        self.shown.until(lambda: "to first token" in _joined(self.shown.text).rpartition(answer)[2])

    def sees(self, keys: str, text: str) -> None:
        self.shown.type(keys)
        self.shown.until(lambda: text in _joined(self.shown.text))

    def closes(self, text: str) -> None:
        self.shown.type("\x1b")
        self.shown.until(lambda: text not in _joined(self.shown.text))

    def leaves(self) -> None:
        self.returns_to_the_shell(lambda: self.shown.type("\x11"))

    def returns_to_the_shell(self, act: Callable[[], None]) -> None:
        num_before = self.shown.received.count(b"shell> ")
        act()
        self.shown.until(lambda: self.shown.received.count(b"shell> ") > num_before)


def _joined(text: str) -> str:
    """Return what stands on the screen with lines that were broken put together, borders left out."""
    return " ".join(text.replace("│", " ").split())


@contextmanager
def walk(tmp_path: Path) -> Iterator[Walk]:
    with terminal(["-c", SHELL], size=(100, 34), KVCHAT_HOME=str(tmp_path / "home")) as shown:
        shown.until_shown("shell>")
        one = Walk(shown)
        one.command(f'kvchat() {{ {sys.executable} -m kvchat "$@"; }}')
        yield one
        shown.type("exit\r")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_readmes_tour_can_be_walked_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(NOTES)
    with walk(tmp_path) as one:
        one.command('kvchat ask --new demo "Hello! My name is Ana."', "computed 12", "resume with: kvchat")
        one.command('kvchat ask -s demo "What is a KV cache?"', "reused 29 of 39 tokens (29 from disk)")
        one.command(f'kvchat ask -f {tmp_path / "notes.txt"} "What is the passkey?"', "48213", "of 45 tokens")
        one.command(
            f'kvchat ask -f {tmp_path / "notes.txt"} "What is my dog called?"',
            "Rex",
            "reused 40 of 46 tokens (40 from disk)",
        )
        one.command(
            'kvchat ask -s demo --json "What is my name?" | grep -o \'"cached_tokens": 70\\|"text.*Ana."\'',
            '"cached_tokens": 70',
            NAME,
        )
        _talk(one)
        one.command("kvchat sessions drop --yes demo 2", "computed again", "on branch")
        _kill(one)
        one.command(f"kvchat import {ROOT / 'sessions/first-steps.kvchat'}", "serves this session alone")
        one.command('kvchat ask -s first-steps "What is my name?"', NAME, "on imported KV, not verified")
        one.command("kvchat sessions verify --all first-steps", "verified 2 of 2 blocks")
        one.command("kvchat sessions", "demo", "first-steps")
        one.command("kvchat cache", "device and host memory are used only while a model is loaded")
        one.command(f"kvchat export demo -o {tmp_path / 'demo.html'}")
        assert "small starter model" in (tmp_path / "demo.html").read_text()
        one.command("kvchat sessions rm --yes demo", "freed")


def _talk(one: Walk) -> None:
    """Do in the interface what the tour says one can."""
    one.opens("kvchat demo", NAME)
    one.sees("/fork by boat\r", "demo › by boat")
    one.says("What is a block?", "A block holds the keys")
    one.sees("/why\r", "esc closes")
    one.closes("esc closes")
    one.sees("/retry 3\r", "enter takes it")
    one.closes("enter takes it")
    one.sees("/tokens\r", "↑↓ alternative")
    one.closes("↑↓ alternative")
    one.sees("/cache blocks\r", "Blocks of")
    one.sees("f", "frozen since")
    one.closes("Blocks of")
    one.sees("/undo\r", "computed again")
    one.closes("computed again")
    one.leaves()


def _kill(one: Walk) -> None:
    """Kill the interface behind a question, and find the question again."""
    one.opens("kvchat demo", "KV cache")
    one.shown.type("What is prefix sharing?\r")
    one.shown.until_shown("▌ What is prefix sharing?")
    one.returns_to_the_shell(lambda: one.shown.type("\x1a"))
    one.command("kill -9 %1")
    one.opens("kvchat demo", "▌ What is prefix sharing?")
    one.leaves()
