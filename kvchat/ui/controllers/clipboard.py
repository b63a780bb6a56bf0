"""Clipboard controller: texts that leave the interface, to the clipboard, the editor or a file."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from shutil import which
from time import strftime

from textual.app import SuspendNotSupported

from kvchat.errors import FileTaken, StorageError, UsageError
from kvchat.platform.private_files import system_errors_as, write_private
from kvchat.session.tree import Turn
from kvchat.text.figures import bytes_text, plural
from kvchat.text.fit_text import padded
from kvchat.ui.controllers.screen_services import ScreenServices

_PATIENCE_S = 2.0
_CELL = 12.2
"""Width of a cell in a picture of the screen."""
_RUN = re.compile(r'<text [^>]*?x="([\d.]+)"[^>]*?-line-(\d+)\)">(.*?)</text>')


class Clipboard:
    """Copies texts, and opens them in the editor."""

    def __init__(self, screen: ScreenServices) -> None:
        self._screen = screen

    async def copy_code(self, turn: Turn) -> None:
        code = code_of(turn.text)
        if code:
            await self.copy(code)
        else:
            self._screen.warn("there is no code in this answer")

    def edit_prompt(self, text: str) -> None:
        changed = self._edited(text)
        if changed is not None:
            self._screen.prompt.write(changed)

    def open(self, turn: Turn) -> None:
        """Show a message in the editor; what is changed there changes nothing here."""
        self._edited(turn.text)

    async def copy(self, text: str) -> None:
        route = await asyncio.to_thread(copy_by_tool, text)
        if route is None:
            # Nothing says whether a terminal has taken it.
            self._screen.app.copy_to_clipboard(text)
            route = "OSC 52"
        self._screen.tell(f"Copied {plural(len(text), 'character')} ({route})")

    def _edited(self, text: str) -> str | None:
        from kvchat.ui.terminal.editor import edited

        try:
            return edited(text, self._screen.app.suspend(), os.environ)
        except UsageError as error:
            self._screen.warn(str(error))
        except SuspendNotSupported:
            self._screen.warn("this terminal cannot be handed to an editor")
        return None


def routes(environ: Mapping[str, str], platform: str = sys.platform) -> tuple[tuple[str, ...], ...]:
    """Return the commands that could reach the clipboard the person sees, best first. Each takes the text on
    its standard input.

    Over SSH a tool of this machine would reach another clipboard, so only the terminal is left.
    """
    if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"):
        return ()
    found: list[tuple[str, ...]] = []
    if platform == "darwin":
        found.append(("pbcopy",))
    if environ.get("WAYLAND_DISPLAY"):
        found.append(("wl-copy",))
    if environ.get("DISPLAY"):
        found += [("xclip", "-selection", "clipboard"), ("xsel", "--clipboard", "--input")]
    if environ.get("WSL_DISTRO_NAME"):
        found.append(("clip.exe",))
    return tuple(found)


def copy_by_tool(text: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Hand a text to the first tool that takes it, and return that tool's name; None where none does.

    Waits for the tool.
    """
    environ = os.environ if environ is None else environ
    for name, *options in routes(environ):
        program = which(name, path=environ.get("PATH"))
        if program is not None and _takes((program, *options), text, environ):
            return name
    return None


def _takes(command: tuple[str, ...], text: str, environ: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(
            command,
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def code_of(text: str) -> str:
    """Return the fenced code of a Markdown text, blocks separated by an empty line."""
    from kvchat.session.render.markdown_text import answer_parser  # not before the first frame

    tokens = answer_parser().parse(text)
    return "\n".join(token.content for token in tokens if token.type in ("fence", "code_block"))


def write_screen(svg: str, target: str, *, force: bool = False) -> str:
    """Write a picture of the screen to a file, as text where its name ends in .txt, and say so.

    Args:
        target: a file, or one of the endings; empty: an SVG.

    Raises:
        FileTaken: it exists; `force` replaces it.
        UsageError: the file's name does not say what it should hold.
        StorageError: it cannot be written.
    """
    is_ending = target.lstrip(".") in ("", "svg", "txt")
    suffix = f".{target.lstrip('.') or 'svg'}"
    file = named_file("kvchat-screen", suffix) if is_ending else Path(target).expanduser().absolute()
    if file.suffix not in (".svg", ".txt"):
        raise UsageError(f"{target} does not say what to write: end it in .svg or .txt")
    if file.exists() and not force:
        raise FileTaken(f"{file} exists already")
    return write_text(file, svg if file.suffix == ".svg" else screen_text(svg))


def named_file(stem: str, suffix: str) -> Path:
    """Return a file of the directory that kvchat was started in, named by the time."""
    return Path.cwd() / f"{stem}-{strftime('%Y%m%d-%H%M%S')}{suffix}"


def write_text(file: Path, text: str) -> str:
    """Write a file for its owner alone, and say so.

    Raises:
        StorageError: it cannot be written.
    """
    data = text.encode()
    with system_errors_as(StorageError, f"cannot write {file}"):
        write_private(file, data)
    return f"wrote {file}: {bytes_text(len(data))}"


def screen_text(svg: str) -> str:
    """Return the letters of a picture of the screen, each in its place."""
    lines: dict[int, str] = {}
    for x, number, words in _RUN.findall(svg):
        before = padded(lines.get(int(number), ""), round(float(x) / _CELL))
        lines[int(number)] = before + unescape(words).replace("\xa0", " ")
    shown = (lines.get(number, "").rstrip() for number in range(max(lines, default=-1) + 1))
    return "".join(f"{line}\n" for line in shown)
