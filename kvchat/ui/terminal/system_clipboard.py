"""Text on its way to the clipboard: by a tool of this machine where there is one, else by the terminal."""

import os
import subprocess
import sys
from collections.abc import Mapping
from shutil import which

_PATIENCE_S = 2.0
OSC_52 = "OSC 52"


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
