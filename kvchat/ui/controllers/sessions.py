"""Session controller: lists, searches, exports, pins, renames and deletes stored sessions."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event
from time import monotonic, time

from textual.timer import Timer

from kvchat.errors import FileTaken, KvchatError
from kvchat.session.session_queries import SearchHit
from kvchat.session.tree import SessionId
from kvchat.text.figures import count_text, plural
from kvchat.text.fit_text import UNTITLED, one_line
from kvchat.ui.controllers.conversations import ConversationController
from kvchat.ui.controllers.engine_watch import EngineWatch, HeldByBranch, HeldBySession
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.key_names import key_name
from kvchat.ui.state.stored_sessions import StoredSessions
from kvchat.ui.widgets.session_rows import SearchFinding, SessionListOptions, title_of

log = logging.getLogger(__name__)

_REST_S = 0.12
"""Messages are searched when typing has rested for this long; titles are at once."""
_FRESH_S = 2.0
"""The list is drawn for other marks and bytes this often at most: while an answer is written, blocks fill."""
_MINUTE_S = 60
_COUNT_SHARE = 0.05
"""Of the time, that counting what is on disk may take where it takes long."""
_COUNT_S = 2.0
"""What is on disk is counted when nothing has changed for this long; an answer's last block is there then."""


class SessionController:
    """Runs what a person asks of the stored sessions. Whatever reads a file runs in a thread.

    Args:
        initial: the session that comes on screen first.

    Attributes:
        sessions: what the store holds, as last read.
        interrupted: the session with an answer that a killed process left, until it is opened.
    """

    def __init__(
        self,
        screen: ScreenServices,
        conversations: ConversationController,
        watch: EngineWatch,
        initial: str | None,
    ) -> None:
        self.sessions = StoredSessions(screen.chat.store)
        self._screen = screen
        self._conversations = conversations
        self._watch = watch
        self._store = screen.chat.store
        self._host = screen.host
        self._turns = screen.turns
        self._finding = SearchFinding()
        self._until_count: Timer | None = None
        self._is_counting = False
        self._not_before_s = 0.0
        self._initial = initial
        self._has_looked = False
        self._told_salvage: object = None
        self.interrupted: SessionId | None = None
        self._drawn_as: tuple[HeldBySession, HeldByBranch, float] | None = None
        self._drawn_s = 0.0

    def refresh(self) -> None:
        self._note_opened()
        self._screen.begin(self._refresh, group="sessions")

    def draw(self) -> None:
        self._drawn_as, self._drawn_s = self._figures(), monotonic()
        (held, held_branches, _), here, stored = self._drawn_as, self._turns.conversation, self.sessions
        options = SessionListOptions(
            active_session=here.session.id if here else None,
            active_branch=here.branch.name if here else None,
            held=held,
            held_branches=held_branches,
            places=stored.places,
            now=time(),
            approximate=stored.approximate,
            on_disk=stored.on_disk,
            finding=self._finding,
        )
        if self._screen.listed.is_attached:  # the window may have been closed meanwhile
            self._screen.listed.show_sessions(stored.entries, options)

    def keep_fresh(self) -> None:
        """Draw marks, bytes and ages again where they have changed; cheap where not, so call it often."""
        is_due = self._drawn_as is not None and monotonic() - self._drawn_s >= _FRESH_S
        if is_due and self._figures() != self._drawn_as:
            self.draw()

    def _figures(self) -> tuple[HeldBySession, HeldByBranch, float]:
        """Return what changes in the list while the store is as it was."""
        return *self._watch.held(self._conversations.opened), time() // _MINUTE_S

    def find(self, words: str) -> None:
        """Show only what has all of some words: by title at once, in messages when typing rests."""
        self._finding = SearchFinding(words=words)
        self.draw()
        self._screen.begin(partial(self._search, words), group="search")

    def title(self, session_id: SessionId) -> str:
        return self.sessions.titles.get(session_id) or UNTITLED

    async def _refresh(self) -> None:
        try:
            await asyncio.to_thread(self.sessions.read)
            await self._look_for_interrupted()
        except KvchatError as error:
            self._screen.warn(str(error))
        self._tell_salvage()
        self.draw()
        self._screen.draw_heading()
        self._count_later()

    def _tell_salvage(self) -> None:
        report = self._store.salvaged
        if report is None or report is self._told_salvage:
            return
        self._told_salvage = report
        damaged = f" ({count_text(report.num_damaged_turns)} damaged)" if report.num_damaged_turns else ""
        self._screen.notices.stand(
            "salvage",
            f"sessions.db was damaged: {plural(report.num_sessions, 'session')} and"
            f" {plural(report.num_turns, 'message')}{damaged} restored,"
            f" the damaged file is kept as {report.set_aside.name}",
        )

    async def _look_for_interrupted(self) -> None:
        """Say once in which session a killed process has left an answer, until that is opened."""
        if self._has_looked:
            return
        self._has_looked = True
        found = await asyncio.to_thread(self._store.interrupted)
        if left := [one for one in found if one.id != self._initial]:
            self.interrupted = left[0].id
            more = f" and {len(left) - 1} more" if left[1:] else ""
            key = key_name(self._screen.own_keys, "go_on")
            self._screen.notices.stand(
                "interrupted", f"Interrupted: {title_of(left[0])}{more} · {key} opens it"
            )
            self._note_opened()

    def _note_opened(self) -> None:
        shown = self._turns.conversation
        if shown is not None and shown.session.id == self.interrupted:
            self.interrupted = None
            self._screen.notices.dismiss("interrupted")

    def _count_later(self) -> None:
        if self._until_count is not None:
            self._until_count.stop()
        self._until_count = self._screen.set_timer(_COUNT_S, self._begin_count)

    def _begin_count(self) -> None:
        self._until_count = None
        if self._is_counting or monotonic() < self._not_before_s:
            self._count_later()
        elif not self._turns.is_any_running:  # when it has ended the list is read again, and this comes back
            self._screen.begin(self._count)

    async def _count(self) -> None:
        """Count what of the sessions is on disk, and draw it; where it cannot be counted nothing is said."""
        self._is_counting, began_s, is_over = True, monotonic(), Event()
        try:
            self.sessions.on_disk = await asyncio.to_thread(self._host.on_disk, is_over.is_set)
        except KvchatError:
            log.warning("what is on disk cannot be counted", exc_info=True)
        finally:
            is_over.set()  # a window that closes waits for no thread that goes on
            self._is_counting = False
            self._not_before_s = monotonic() + (monotonic() - began_s) / _COUNT_SHARE
        self.draw()

    async def _search(self, words: str) -> None:
        await asyncio.sleep(_REST_S)
        if not words:
            return
        hits: Sequence[SearchHit] = ()
        try:
            hits = await asyncio.to_thread(self._store.search, words)
        except KvchatError as error:
            self._screen.warn(str(error))
        if self._finding.words == words:
            self._finding = SearchFinding(words=words, hits=hits)
            self.draw()

    # Work on one session

    async def pin(self, session_id: SessionId) -> None:
        """Keep a session on top of the list, or no longer."""
        session = self.sessions.session(session_id)
        is_pinned = session is None or not session.pinned
        await self._change(lambda: self._store.pin(session_id, is_pinned=is_pinned))

    async def rename(self, session_id: SessionId, title: str) -> None:
        await self._change(lambda: self._store.rename(session_id, title))

    async def ask_for_title(self, session_id: SessionId) -> None:
        title = self.sessions.titles.get(session_id) or ""
        written = await self._screen.dialogs.ask_line("rename", title, "enter renames it · esc closes")
        if written and written != title:
            await self.rename(session_id, written)

    async def ask_for_file(self, session_id: SessionId, branch: str | None) -> None:
        """Write a session (None: the branch used last) to a file that the person names."""
        session = self.sessions.session(session_id)
        if session is None:
            return
        branch = branch or session.active_branch
        named = f"export “{self.title(session_id)}”"
        hint = ".md .html .json .kvchat; empty: a bundle · enter writes it · esc closes"
        target = await self._screen.dialogs.ask_line(named, "", hint)
        if target is not None:
            await self.export(session_id, branch, target)

    async def export(self, session_id: SessionId, branch: str, target: str) -> None:
        await self.write(partial(self._host.export, session_id, branch, target))

    async def write(self, write: Callable[..., str]) -> None:
        """Write something to a file; ask before one is replaced.

        Args:
            write: says what was written; raises FileTaken unless it is forced.
        """
        try:
            words = await asyncio.to_thread(write)
        except FileTaken as taken:
            if not await self._screen.dialogs.confirm("Replace this file?", str(taken), default=False):
                return
            words = await asyncio.to_thread(write, force=True)
        self._screen.tell(words, title="export")

    async def ask_to_delete(self, session_id: SessionId, branch: str | None = None) -> None:
        """Delete a session, or one of its branches, if the person means it."""
        if self._turns.is_answering(session_id):
            self._screen.warn("an answer is being written there: stop it with esc, then delete it")
            return
        try:
            freed = await asyncio.to_thread(self._host.freed_by_deleting, session_id, branch)
        except KvchatError as error:
            freed = str(error)
        question, consequence = f"Delete “{self.title(session_id)}”?", f"{freed}."
        if branch is None:
            consequence = f"Its messages are gone for good, on all branches.\n{consequence}"
        else:
            question = f"Delete the branch “{one_line(branch)}” of “{self.title(session_id)}”?"
        if not await self._screen.dialogs.confirm(question, consequence, default=False):
            return
        await self._conversations.leave_session(session_id, branch)
        if branch is None:
            await self._change(lambda: self._store.delete_session(session_id))
        else:
            await self._change(lambda: self._store.remove_branch(session_id, branch))
        for words in await asyncio.to_thread(self._store.still_readable):
            self._screen.warn(words)

    async def _change(self, change: Callable[[], object]) -> None:
        try:
            await asyncio.to_thread(change)
        except KvchatError as error:
            self._screen.warn(str(error))
        self.refresh()
