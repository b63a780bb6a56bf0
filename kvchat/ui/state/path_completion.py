"""Files that a beginning may become, while it is typed."""

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

_MOST = 50
_MOST_SEEN = 5_000
"""Entries of a directory that are looked at: a key must not wait for a huge one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathChoice:
    """A file or directory. `path` is written as the person began it."""

    path: str
    is_directory: bool

    @property
    def usage(self) -> str:
        return self.path + ("/" if self.is_directory else "")

    @property
    def summary(self) -> str:
        return "" if self.is_directory else "attach"


def path_choices(beginning: str) -> tuple[PathChoice, ...]:
    """Return what a path may become: directories first, hidden ones only where the beginning says so."""
    head, name = os.path.split(beginning)
    try:
        with os.scandir(Path(head or ".").expanduser()) as entries:
            found = [
                PathChoice(path=os.path.join(head, entry.name), is_directory=_is_dir(entry))
                for entry in islice(entries, _MOST_SEEN)
                if entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith("."))
            ]
    except (OSError, RuntimeError, ValueError):  # `~name` of nobody; what can be no path
        return ()
    return tuple(sorted(found, key=lambda one: (not one.is_directory, one.path.casefold()))[:_MOST])


def path_at_end(text: str) -> str | None:
    """Return the path that is being typed: behind `@` at the end of a text, or as what `/attach` takes."""
    if text.startswith("/attach "):
        return text.removeprefix("/attach ")
    _, at, fragment = text.rpartition("@")
    before = text[: len(text) - len(fragment) - 1]
    if not at or "\n" in fragment or " " in fragment or (before and not before[-1].isspace()):
        return None
    return fragment


def _is_dir(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
