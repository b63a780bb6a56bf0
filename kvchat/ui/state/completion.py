"""Completion of a line while it is typed: what a command's argument may become, and files behind `@`."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kvchat.app.interface_types import SettingEntry
from kvchat.text.fit_text import one_line
from kvchat.ui.commands import find_command
from kvchat.ui.widgets.session_rows import SessionWithBranches

FORMATS = ("exact", "fp8", "int8", "int4", "int2", "k=int8,v=int4", "shadow:25%")
_CACHE = {
    "layers": "every layer, or alike layers as one row",
    "blocks": "every block: whose, where, when last used",
    "freeze": "freeze the cache panel, or follow again",
    **{f"format {name}": "store the KV of open conversations so" for name in FORMATS},
}
_ENDINGS = {".md": "Markdown", ".html": "web page", ".json": "data", ".kvchat": "bundle with its KV"}
_MOST = 50
_MOST_SEEN = 5_000
"""Entries of a directory that are looked at: a key must not wait for a huge one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """What stands behind a command's name. `is_whole`: nothing need follow, the command can run."""

    usage: str
    summary: str = ""
    is_whole: bool = True


Source = Callable[[str], Iterable[Argument]]
"""Returns what an argument may become, most likely first; it is asked at each key and waits for nothing."""


def arguments(line: str, sources: Mapping[str, Source]) -> tuple[Argument, ...]:
    """Return what the argument of a line may become: what begins with what is typed, then what has it.

    Args:
        sources: by the names of commands.
    """
    name, space, typed = line.partition(" ")
    command = find_command(name[1:]) if space and "\n" not in line else None
    if command is None or command.name not in sources:
        return ()
    wanted = typed.casefold()
    found = [one for one in sources[command.name](typed) if wanted in one.usage.casefold()]
    return tuple(sorted(found, key=lambda one: not one.usage.casefold().startswith(wanted)))


def cache_arguments(_typed: str) -> Iterable[Argument]:
    return (Argument(usage=name, summary=summary) for name, summary in _CACHE.items())


def export_arguments(typed: str) -> Iterable[Argument]:
    """Return a file's name with each ending; nothing before it has a name."""
    stem = typed.rpartition(".")[0] or typed
    named = _ENDINGS if stem.rpartition("/")[2] else {}
    return (Argument(usage=stem + ending, summary=summary) for ending, summary in named.items())


def switch_arguments(
    sessions: Sequence[SessionWithBranches], titles: Mapping[str, str], here: tuple[str, str] | None
) -> Iterable[Argument]:
    """Return the other branches of the session `here` on screen, and the other sessions by their titles."""
    for session, branches in sessions:
        if here is not None and session.id == here[0]:
            for branch in branches:
                if branch.name != here[1]:
                    yield Argument(usage=branch.name, summary="branch of this conversation")
    for session, _ in sessions:
        if here is None or session.id != here[0]:
            yield Argument(usage=titles[session.id], summary="session")


def setting_arguments(entries: Sequence[SettingEntry], typed: str) -> Iterable[Argument]:
    """Return settings with their values and meaning; behind the name of one, the values that it takes."""
    name, space, _ = typed.partition(" ")
    for entry in entries:
        if space and entry.name == name:
            yield from (Argument(usage=f"{name} {one}", summary=entry.summary) for one in entry.choices)
        elif not space:
            value = f"{one_line(entry.value)} · " if entry.value else ""
            yield Argument(usage=entry.name, summary=value + entry.summary, is_whole=False)


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
