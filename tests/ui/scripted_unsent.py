"""A drafts of unsent messages that follows a script."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import Event

from kvchat.errors import StorageError
from kvchat.session.unsent_drafts import LentDraft
from tests.ui.gate import HELD_S


class ScriptedUnsent:
    """What was not sent, kept as long as the script runs; `is_full`: nothing more can be kept; `lending`:
    without it nothing is lent yet.
    """

    def __init__(self) -> None:
        self.kept: dict[str | None, list[str]] = {}
        self.branches: dict[str, str | None] = {}
        self.is_full = False
        self.asked: list[str | None] = []
        self.lending = Event()
        self.lending.set()

    def keep(self, session_id: str | None, text: str, branch: str | None = None) -> None:
        if self.is_full:
            raise StorageError("no space is left")
        self.kept.setdefault(session_id, []).append(text)
        self.branches[text] = branch

    @contextmanager
    def lent(self, session_id: str | None, elsewhere: Collection[str] = ()) -> Iterator[LentDraft]:
        self.asked.append(session_id)
        self.lending.wait(HELD_S)
        kept = self.kept.get(session_id, [])
        stay = [text for text in kept if self.branches[text] in elsewhere]
        yield LentDraft(text="\n".join(text for text in kept if text not in stay))
        self.kept.pop(session_id, None)
        if stay:
            self.kept[session_id] = stay
