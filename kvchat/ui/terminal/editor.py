"""A text in the person's own editor, which has the terminal to itself meanwhile."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

from kvchat.errors import UsageError
from kvchat.platform.private_files import system_errors_as

_USUAL = ("nano", "vim", "vi")


def editor_command(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the editor's command line, without a file.

    Raises:
        UsageError: there is none, or it cannot be found.
    """
    editor = environ.get("VISUAL") or environ.get("EDITOR") or ""
    try:
        words = tuple(shlex.split(editor)) or next(((name,) for name in _USUAL if which(name)), ())
    except ValueError as error:
        raise UsageError(f"the editor {editor} cannot be read ({error}); set EDITOR to another") from error
    if not words:
        raise UsageError("there is no editor; set EDITOR to yours")
    if which(words[0], path=environ.get("PATH")) is None:
        raise UsageError(f"the editor {words[0]} is not there; set EDITOR to another")
    return words


def edited(text: str, suspended: AbstractContextManager[None], environ: Mapping[str, str]) -> str:
    """Return what the person makes of a text in the editor. Waits for the editor to be closed.

    The file is the person's alone, in memory where the system has such a place, and is gone afterwards.

    Args:
        suspended: keeps the interface off the terminal.

    Raises:
        UsageError: there is no editor, or it failed.
    """
    command = editor_command(environ)
    with ExitStack() as stack:
        try:
            file = _file_with(text, stack, _quiet_place(environ))
        except OSError as error:
            raise UsageError(
                f"the text cannot be given to the editor: {error.strerror or error}; "
                "free some space, or set TMPDIR to another directory"
            ) from error
        with suspended:
            _wait_for((*command, str(file)))
        with system_errors_as(UsageError, "the edited text cannot be read"):
            return file.read_text(encoding="utf-8", errors="replace").removesuffix("\n")


def _file_with(text: str, stack: ExitStack, place: str | None) -> Path:
    made = TemporaryDirectory(prefix="kvchat-", dir=place, ignore_cleanup_errors=True)
    file = Path(stack.enter_context(made)) / "message.md"
    file.touch(mode=0o600)
    file.write_text(text, encoding="utf-8", errors="replace")  # half a character, as some terminals send
    return file


def _wait_for(command: tuple[str, ...]) -> None:
    # The process's own stdout goes to the log while the interface runs.
    terminal = sys.__stderr__
    assert terminal is not None
    with system_errors_as(UsageError, "the editor cannot be started"):
        done = subprocess.run(command, stdout=terminal.fileno(), stderr=terminal.fileno(), check=False)
    if done.returncode != 0:
        raise UsageError(f"the editor ended with status {done.returncode}; nothing was changed")


def _quiet_place(environ: Mapping[str, str]) -> str | None:
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    return runtime if os.path.isdir(runtime) and os.access(runtime, os.W_OK) else None
