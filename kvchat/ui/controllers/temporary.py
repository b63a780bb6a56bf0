"""Conversations that are deleted, words and KV, when they are left."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from kvchat.errors import KvchatError
from kvchat.session.tree import SessionId
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.controllers.turn_runner import TurnRunner

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation
    from kvchat.chat.service import Chat

_TOO_LATE = "it is just being deleted, as it was left"
_NOT_YET = "its first message is just being stored, so it is still temporary: /temp again keeps it"


class TemporaryController:
    """Deletes such conversations once they are neither on screen nor being answered.

    Args:
        leave_session: takes a session off the screen and lets go of what it holds.
    """

    def __init__(
        self,
        screen: ScreenServices,
        chat: "Chat",
        turns: TurnRunner,
        leave_session: Callable[[SessionId], Awaitable[None]],
    ) -> None:
        self._screen = screen
        self._chat = chat
        self._turns = turns
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
