"""Text on its way to the clipboard: by a tool of this machine where there is one, else by the terminal."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from shutil import which

_PATIENCE_S = 2.0
OSC_52 = "the terminal (OSC 52)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipboardRoute:
    """A command that takes the text on its standard input."""

    name: str
    command: tuple[str, ...]


def routes(environ: Mapping[str, str], platform: str = sys.platform) -> tuple[ClipboardRoute, ...]:
    """Return the tools that could reach the clipboard the person sees, best first.

    Over SSH a tool of this machine would reach another clipboard, so only the terminal is left.
    """
    if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"):
        return ()
    found = []
    if platform == "darwin":
        found.append(ClipboardRoute(name="pbcopy", command=("pbcopy",)))
    if environ.get("WAYLAND_DISPLAY"):
        found.append(ClipboardRoute(name="wl-copy", command=("wl-copy",)))
    if environ.get("DISPLAY"):
        found.append(ClipboardRoute(name="xclip", command=("xclip", "-selection", "clipboard")))
        found.append(ClipboardRoute(name="xsel", command=("xsel", "--clipboard", "--input")))
    if environ.get("WSL_DISTRO_NAME"):
        found.append(ClipboardRoute(name="clip.exe", command=("clip.exe",)))
    return tuple(found)


def copy_by_tool(text: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Hand a text to the first tool that takes it, and return that tool's name; None where none does.

    Waits for the tool.
    """
    environ = os.environ if environ is None else environ
    for route in routes(environ):
        program = which(route.command[0], path=environ.get("PATH"))
        if program is not None and _takes((program, *route.command[1:]), text, environ):
            return route.name
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
