"""Conversations that are thrown away, words and KV, when they are left: asides, and temporary ones."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from kvchat.chat.events import EditCost
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.errors import KvchatError
from kvchat.session.tree import SessionId, Turn
from kvchat.text.cache_usage import in_bytes, price_words
from kvchat.text.figures import plural
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.state.conversation_tab import branch_key, message_turn

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation

_ASIDE = "aside"
_TOO_LATE = "it is just being deleted, as it was left"
_NOT_YET = "its first message is just being stored, so it is still temporary: /temp again keeps it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """What an aside was opened beside."""

    here: "Conversation"
    back: "Conversation"

    def is_line_of(self, conversation: "Conversation | None") -> bool:
        """Whether a conversation is this aside, also where it was opened anew."""
        return conversation is not None and branch_key(conversation) == branch_key(self.here)


class AsideController:
    """Begins asides, and throws them away.

    Args:
        keep_behind: keeps a conversation open that an aside has come on screen for.
        come_back_to: takes it from behind again.
    """

    def __init__(
        self,
        screen: ScreenServices,
        keep_behind: "Callable[[Conversation], object]",
        come_back_to: "Callable[[Conversation], Conversation]",
    ) -> None:
        self._screen = screen
        self._chat = screen.chat
        self._turns = screen.turns
        self._keep_behind = keep_behind
        self._come_back_to = come_back_to
        self._asides: list[Aside] = []  # on screen, or being answered behind it

    @property
    def shown(self) -> Aside | None:
        return self.aside_of(self._turns.conversation)

    def aside_of(self, conversation: "Conversation | None") -> Aside | None:
        found = next((one for one in self._asides if one.is_line_of(conversation)), None)
        if found is None or conversation is None:
            return None
        return replace(found, here=conversation)  # opened anew, it knows what was said since

    async def begin(self, text: str) -> None:
        back = self._turns.conversation
        assert back is not None
        if self.shown is None:
            self._screen.tell(price_so_far(back, self._screen.snapshot), title=_ASIDE)
            here = await asyncio.to_thread(self._free_aside, back)
            self._asides.append(Aside(here=here, back=back))
            await self._turns.show(here)
            self._keep_behind(back)
        if text:
            self._screen.queue(message_turn(text))

    def _free_aside(self, back: "Conversation") -> "Conversation":
        taken = {branch.name for branch in self._chat.store.branches(back.session.id)}
        names = (_ASIDE, *(f"{_ASIDE}-{number}" for number in range(2, 1000)))
        return self._chat.fork(back, None, next(name for name in names if name not in taken))

    def end(self) -> None:
        """Throw the aside away and go back to where it began."""
        aside = self.shown
        if self._turns.is_busy:
            self._screen.warn("the aside is being answered: esc stops it, then go back")
        elif aside is not None:
            self._screen.begin(partial(self._end, aside))

    async def leave(self, to: "Conversation | None") -> bool:
        """Throw the aside away because something else comes on screen, and return whether that was done.

        One that is being answered goes behind the screen, and is thrown away when its answer has ended.
        """
        aside = self.shown
        if aside is None or aside.is_line_of(to) or self._turns.is_busy:
            return False
        return await self._throw_away(aside)

    async def _end(self, aside: Aside) -> None:
        is_gone = await self._throw_away(aside)
        await self._turns.show(self._come_back_to(aside.back))
        self._tell_end(aside, is_gone)

    async def end_behind(self, conversation: "Conversation") -> None:
        """Throw away what has been answered behind the screen, if it is an aside."""
        aside = self.aside_of(conversation)
        if aside is not None:
            self._tell_end(aside, await self._throw_away(aside))

    async def _throw_away(self, aside: Aside) -> bool:
        self.forget(aside.here.session.id, aside.here.branch.name)
        try:
            return bool(await asyncio.to_thread(self._chat.variants.throw_away, aside.here, aside.back))
        except KvchatError as error:
            self._screen.warn(str(error))
            return False

    def throw_all_away(self) -> None:
        """Throw away every aside, before the interface is left; one that still writes stays."""
        here = self.shown
        for one in self._asides:
            aside = here if here is not None and one.is_line_of(here.here) else one
            if not self._turns.is_writing(aside.here):
                with suppress(KvchatError):
                    self._chat.variants.throw_away(aside.here, aside.back)
        self._asides = []

    def _tell_end(self, aside: Aside, is_gone: bool) -> None:
        if not is_gone:
            self._screen.tell("the aside stays: a branch rests on it")
            return
        before, after = (
            sum(len(turn.token_ids or ()) for turn in one.turns) for one in (aside.back, aside.here)
        )
        num_gone = max(0, after - before)
        gone = f", with {plural(num_gone, 'token')}{in_bytes(num_gone, self._screen.snapshot)}"
        self._screen.tell(f"the aside is gone{gone if num_gone else ''}")

    def forget(self, session_id: SessionId, branch: str | None = None) -> None:
        """Let a session's lines, or that one alone, be asides no more: they are gone, or kept."""
        self._asides = [
            one
            for one in self._asides
            if one.here.session.id != session_id or branch not in (None, one.here.branch.name)
        ]


class TemporaryController:
    """Deletes such conversations once they are neither on screen nor being answered.

    Args:
        leave_session: takes a session off the screen and lets go of what it holds.
    """

    def __init__(self, screen: ScreenServices, leave_session: Callable[[SessionId], Awaitable[None]]) -> None:
        self._screen = screen
        self._chat = screen.chat
        self._turns = screen.turns
        self._leave_session = leave_session
        self._leaving: set[SessionId] = set()
        self._deleting: set[SessionId] = set()

    @property
    def is_shown(self) -> bool:
        shown = self._turns.conversation
        if shown is None:
            return self._turns.tab.draft.is_temporary
        return self.is_temporary(shown)

    def is_temporary(self, conversation: "Conversation") -> bool:
        return conversation.session.id in self._turns.temporary

    def keep(self) -> None:
        """Keep the temporary conversation on screen, like any other."""
        shown = self._turns.conversation
        if shown is None and self._turns.is_running:
            self._screen.warn(_NOT_YET)
            return
        if shown is not None and shown.session.id in self._deleting:
            self._screen.warn(_TOO_LATE)
            return
        if shown is None:
            self._turns.tab.draft = replace(self._turns.tab.draft, is_temporary=False)
        else:
            self._turns.temporary.discard(shown.session.id)
        self._screen.tell("this conversation is kept, like any other")
        self._screen.conversation_changed()

    async def left(self, conversation: "Conversation | None") -> None:
        """Delete what has left the screen, if it is temporary; while it is answered, it waits for the end."""
        if conversation is None:
            return
        session_id = conversation.session.id
        if session_id not in self._leaving and self._is_to_go(session_id):
            await self._delete(conversation)

    def _is_to_go(self, session_id: SessionId) -> bool:
        """Whether a session is temporary, not on screen, and not being answered."""
        shown = self._turns.conversation
        is_shown = shown is not None and shown.session.id == session_id
        return session_id in self._turns.temporary and not (is_shown or self._turns.is_answering(session_id))

    def delete_all(self) -> None:
        """Delete every temporary conversation, before the interface is left; one that still writes stays."""
        for session_id in list(self._turns.temporary):
            if not self._turns.is_writing_in(session_id):
                with suppress(KvchatError):
                    self._chat.store.delete_session(session_id)
                    self._turns.temporary.discard(session_id)

    async def _delete(self, conversation: "Conversation") -> None:
        session_id = conversation.session.id
        self._leaving.add(session_id)
        try:
            await self._leave_session(session_id)
            await asyncio.to_thread(self._chat.close, conversation)
            if not self._is_to_go(session_id):
                return  # somebody has come back to it meanwhile, and may have said that it is to be kept
            self._deleting.add(session_id)
            await asyncio.to_thread(self._chat.store.delete_session, session_id)
            self._turns.temporary.discard(session_id)  # only now: until then leaving kvchat deletes it
            for words in await asyncio.to_thread(self._chat.store.still_readable):
                self._screen.warn(words)
        except KvchatError as error:
            self._screen.warn(str(error))
        else:
            self._screen.tell("the temporary conversation is gone")
        finally:
            self._leaving.discard(session_id)
            self._deleting.discard(session_id)
        self._screen.conversation_changed()


def price_so_far(conversation: "Conversation", snapshot: CacheSnapshot | None) -> str:
    """Return what a fork behind the last message shares."""
    if all(turn.token_ids is None for turn in conversation.turns):
        return "what is shared is up to the server"
    return fork_price(conversation.turns, snapshot)


def fork_price(turns: Sequence[Turn], snapshot: CacheSnapshot | None) -> str:
    """Return what a fork behind these turns shares; it computes nothing before the next message."""
    shared = sum(len(turn.token_ids or ()) for turn in turns)
    cost = EditCost(reused_tokens=shared, computed_tokens=0, left_turns=0, left_tokens=0)
    return price_words(cost, snapshot)
