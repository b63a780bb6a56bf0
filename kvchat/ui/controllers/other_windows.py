"""Other windows on the same store: what they add to the conversation on screen is shown, or told."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from kvchat.errors import KvchatError
from kvchat.session.tree import Finish, SessionId, TurnId
from kvchat.text.figures import plural
from kvchat.text.fit_text import one_line
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.controllers.turn_runner import TurnRunner

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation
    from kvchat.chat.service import Chat

_LOOK_S = 0.4
_ABOUT = "other window"
_BEGUN = "Another window has begun the branch {0} · /switch {0} opens it"
_ANSWERING = "Another window is being answered here; its messages are shown at the end"
_UNSHOWN = "{} · shown once the prompt is empty; what you send before goes to a branch of its own"


class OtherWindows:
    """Looks whether another window has written, while nothing is answered in this one.

    Args:
        refresh: reads the list of sessions again.
    """

    def __init__(
        self, screen: ScreenServices, chat: "Chat", turns: TurnRunner, refresh: Callable[[], object]
    ) -> None:
        self._screen = screen
        self._chat = chat
        self._turns = turns
        self._refresh = refresh
        self._looked_s = 0.0
        self._is_looking = False
        self._version: tuple[int, int] | None = None
        self._known: tuple[SessionId | None, frozenset[str]] = None, frozenset()
        self._told: TurnId | None = None
        """The last message that is not shown yet, and has been told of."""

    def look(self) -> None:
        """Look in a thread if it is time; call it often. It reads no row where nobody has written."""
        if not (self._is_looking or self._turns.is_busy) and monotonic() - self._looked_s >= _LOOK_S:
            self._is_looking, self._looked_s = True, monotonic()
            self._screen.run_worker(self._look())

    async def _look(self) -> None:
        with suppress(KvchatError):  # told by whoever needs what cannot be read
            version, before = await asyncio.to_thread(self._chat.store.version), self._version
            shown = self._turns.conversation
            is_due = self._told is not None and not self._screen.prompt.text
            if shown is not None and (version != before or is_due or shown.session.id != self._known[0]):
                await self._compare(shown, is_theirs=before is not None and version[0] != before[0])
            self._version = version
        self._is_looking = False

    async def _compare(self, shown: "Conversation", *, is_theirs: bool) -> None:
        branches = await asyncio.to_thread(self._chat.store.branches, shown.session.id)
        (session_id, known), names = self._known, frozenset(branch.name for branch in branches)
        self._known = shown.session.id, names
        if is_theirs and session_id == shown.session.id and (begun := names - known - {shown.branch.name}):
            for name in sorted(begun):
                self._screen.warn(_BEGUN.format(one_line(name)))
            self._refresh()
        here = next((branch for branch in branches if branch.name == shown.branch.name), shown.branch)
        if here.leaf_id is None or here.leaf_id == shown.branch.leaf_id:
            self._tell(None)
        elif (await asyncio.to_thread(self._chat.store.turn, here.leaf_id)).finish is Finish.PARTIAL:
            self._tell(here.leaf_id, _ANSWERING)
        else:
            await self._show(shown)

    async def _show(self, shown: "Conversation") -> None:
        """Show what was added to the branch on screen, unless a message is being written here."""
        fresh = await asyncio.to_thread(self._chat.open, shown.session.id, shown.branch.name)
        if self._turns.conversation is not shown or self._turns.is_busy:
            return
        words = f"Another window has added {plural(len(fresh.turns) - len(shown.turns), 'message')} here"
        if fresh.turns[: len(shown.turns)] != shown.turns:
            words = "Another window has changed this branch"
        if self._screen.prompt.text:
            self._tell(fresh.branch.leaf_id, _UNSHOWN.format(words))
            return
        self._tell(None)
        await asyncio.to_thread(self._chat.close, shown)
        self._turns.replace(fresh)
        await self._turns.show(fresh)
        self._screen.tell(words)

    def _tell(self, leaf_id: TurnId | None, words: str = "") -> None:
        """Let a line stand about messages that are not shown yet; None: all are."""
        if leaf_id is None:
            self._screen.notices.dismiss(_ABOUT)
        elif leaf_id != self._told:
            self._screen.notices.stand(_ABOUT, words)
        self._told = leaf_id
