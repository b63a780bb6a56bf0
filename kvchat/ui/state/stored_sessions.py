"""Stored sessions as last read: the list on the left, and titles everywhere."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kvchat.app.interface_types import KvOnDisk
from kvchat.errors import StorageError
from kvchat.session.tree import Session, SessionId, nested
from kvchat.text.fit_text import STEP, one_line
from kvchat.ui.widgets.cache.panel_rows import BranchNames
from kvchat.ui.widgets.session_rows import BranchPlace, SessionWithBranches, distinct_titles

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation
    from kvchat.session.store import SessionStore


class StoredSessions:
    """Sessions with their branches; the branches only where there are several.

    Attributes:
        entries: newest first.
        places: where branches stand below the one that they leave, by session and name.
        titles: what the sessions are called, each differently, by id; asked for many times a second.
        approximate: the sessions with an answer that was sampled on approximate KV.
        on_disk: what of their KV is stored, as last counted.
    """

    def __init__(self, store: "SessionStore") -> None:
        self.entries: tuple[SessionWithBranches, ...] = ()
        self.titles: Mapping[str, str] = {}
        self.places: Mapping[tuple[str, str], BranchPlace] = {}
        self.approximate: frozenset[str] = frozenset()
        self.on_disk: Mapping[SessionId, KvOnDisk] = {}
        self._store = store

    def read(self) -> None:
        """Read the store again, replaced by what can be read of it where it is damaged; from any thread."""
        store = self._store
        try:
            summaries = store.list_sessions()
        except StorageError:
            if not store.restore():
                raise
            summaries = store.list_sessions()
        entries: list[SessionWithBranches] = []
        places: dict[tuple[str, str], BranchPlace] = {}
        for summary in summaries:
            session_id = summary.session.id
            found = store.branches(session_id) if summary.num_branches > 1 else ()
            tree = list(nested(found, store.outline(session_id))) if found else []
            entries.append((summary.session, [branch for branch, _, _ in tree]))
            for branch, depth, num in tree:
                places[session_id, branch.name] = BranchPlace(depth=depth, num_tokens=num)
        self.entries, self.places = tuple(entries), places
        self.titles = distinct_titles([session for session, _ in self.entries])
        self.approximate = frozenset(summary.session.id for summary in summaries if not summary.is_exact)

    def session(self, session_id: SessionId) -> Session | None:
        return next((session for session, _ in self.entries if session.id == session_id), None)

    def branch_names(self, here: "Conversation | None", opened: "Iterable[Conversation]") -> BranchNames:
        """Name the live branches of a session by its title; where several are known, those of the session on
        screen by branch, those of another by both.
        """
        live = {known.engine_sequence: known for known in opened if known.engine_sequence is not None}
        num_live = Counter(known.session.id for known in live.values())
        of_branches = {
            sequence: self._branch_name(known, here)
            for sequence, known in live.items()
            if num_live[known.session.id] > 1
        }
        active = here.engine_sequence if here else None
        return BranchNames(of_branches=of_branches, of_sessions=self.titles, active=active)

    def _branch_name(self, known: "Conversation", here: "Conversation | None") -> str:
        name = one_line(known.branch.name)
        if here is not None and known.session.id == here.session.id:
            return name
        return f"{self.titles.get(known.session.id) or known.session.id}{STEP}{name}"
