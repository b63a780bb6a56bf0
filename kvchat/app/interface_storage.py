"""Session files for the interface: exports, and what deleting a session would free."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kvchat.app.config import Settings
from kvchat.app.export.formats import Format, format_of
from kvchat.app.interface_types import KvOnDisk
from kvchat.app.retention.session_removal import OTHERS, SessionService, branch_words, expected_words
from kvchat.errors import FileTaken, UsageError
from kvchat.session.tree import SessionId

if TYPE_CHECKING:
    from kvchat.app.retention.stored_kv_counts import StoredKv


class InterfaceStorage:
    """The files of one store's sessions; implements the interface's protocol of this name."""

    def __init__(self, settings: Settings, store: SessionService) -> None:
        self._settings = settings
        self._store = store
        self._kept: StoredKv | None = None

    def on_disk(self, is_stopped: Callable[[], bool]) -> Mapping[SessionId, KvOnDisk]:
        """Count what of each session's KV is on disk; see `StoredKv.count`.

        Raises:
            StorageError: it cannot be counted.
        """
        from kvchat.app.retention.stored_kv_counts import StoredKv

        self._kept = self._kept or StoredKv(self._store, self._settings)
        return self._kept.count(is_stopped)

    def export(self, session_id: SessionId, branch: str, destination: str, *, force: bool = False) -> str:
        """Write a session to the file or in the form that is named, and say what was written.

        Args:
            branch: the one that Markdown and the web page show.
            destination: a file, or a format; empty: a bundle.
            force: replace the file if it exists.

        Raises:
            FileTaken: it exists.
            UsageError: the file's name does not say what it should hold.
            StorageError: it cannot be written.
        """
        # What reads blocks is imported when it is needed: the window's first frame does without.
        from kvchat.app.export.exporter import Exporter, target_of

        session = self._store.session(session_id)
        output, format = _meant(destination)
        target = target_of(output, session, format).absolute()
        if target.exists() and not force:
            raise FileTaken(f"{target} exists already")
        exporter = Exporter(self._settings, self._store)
        return exporter.write(session, branch if format.is_one_branch else None, format, target).words

    def freed_by_deleting(self, session_id: SessionId, branch: str | None = None) -> str:
        """Say what deleting a session, or one of its branches, would free on the disk, and what of it would
        stay.
        """
        if branch is None:
            return expected_words(lambda: self._store.would_remove([session_id]))
        plan = self._store.removal_of(session_id, branch)
        freed = expected_words(lambda: self._store.would_remove_branch(plan), OTHERS)
        return f"{branch_words(plan)}.\n{freed}"


def _meant(destination: str) -> tuple[Path | None, Format]:
    """Return the file and the format that a person asks for in one word."""
    if not destination:
        return None, Format.BUNDLE
    named = {name: format for format in Format for name in (format.value, format.suffix)}
    if destination in named:
        return None, named[destination]
    path = Path(destination).expanduser()
    format = format_of(path)
    if format is None:
        raise UsageError(f"{destination} does not say what to write: end it in .md, .html, .json or .kvchat")
    return path, format
