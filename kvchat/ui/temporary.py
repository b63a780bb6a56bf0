"""Conversations that are deleted, words and KV, when they are left."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

from kvchat.errors import KvchatError
from kvchat.session.tree import SessionId
from kvchat.ui.bridge import ChatService, ConversationView
from kvchat.ui.desk import Desk
from kvchat.ui.lane import Draft
from kvchat.ui.turns import Turns

_BEGUN = (
    "deleted, words and KV, when you leave it; /temp again keeps it."
    " Until then it is stored: kvchat --temp writes nothing at all"
)


class TemporaryDesk(Desk, Protocol):
    """What is needed of the screen."""

    def open_with(
        self, opener: Callable[[], Awaitable[ConversationView | None]], draft: Draft | None = None
    ) -> object: ...

    async def leave_session(self, session_id: SessionId, branch: str | None = None) -> None: ...

    def conversation_changed(self) -> None: ...


class Temporary:
    """Begins such conversations, and deletes them once they are neither on screen nor being answered."""

    def __init__(self, screen: TemporaryDesk, chat: ChatService, turns: Turns) -> None:
        self._screen = screen
        self._chat = chat
        self._turns = turns

    @property
    def is_shown(self) -> bool:
        shown = self._turns.conversation
        if shown is None:
            return self._turns.draft.is_temporary
        return shown.session.id in self._turns.temporary

    def begin(self) -> None:
        """Begin a temporary conversation; keep the one on screen where it is one."""
        if not self.is_shown:
            draft = Draft(system=self._turns.system, is_temporary=True)
            self._screen.open_with(_nothing, draft)
            self._screen.tell(_BEGUN, title="temporary")
            return
        shown = self._turns.conversation
        if shown is None:
            self._turns.draft = replace(self._turns.draft, is_temporary=False)
        else:
            self._turns.temporary.discard(shown.session.id)
        self._screen.tell("this conversation is kept, like any other")
        self._screen.conversation_changed()

    async def left(self, conversation: ConversationView | None) -> None:
        """Delete what has left the screen, if it is temporary; while it is answered, it waits for the end."""
        shown = self._turns.conversation
        if conversation is None or conversation.session.id not in self._turns.temporary:
            return
        session_id = conversation.session.id
        is_shown = shown is not None and shown.session.id == session_id
        if not is_shown and not self._turns.is_answering(session_id):
            await self._delete(conversation)

    def ended_behind(self, conversation: ConversationView) -> bool:
        """Delete what has been answered behind the screen, if it is temporary; return whether it is."""
        is_temporary = conversation.session.id in self._turns.temporary
        if is_temporary:
            self._screen.begin(partial(self.left, conversation))
        return is_temporary

    def delete_all(self) -> None:
        """Delete every temporary conversation, before the interface is left; one that still writes stays."""
        for session_id in list(self._turns.temporary):
            if not self._turns.is_answering(session_id):
                with suppress(KvchatError):
                    self._chat.store.delete_session(session_id)

    async def _delete(self, conversation: ConversationView) -> None:
        self._turns.temporary.discard(conversation.session.id)
        try:
            await self._screen.leave_session(conversation.session.id)
            await asyncio.to_thread(self._chat.close, conversation)
            await asyncio.to_thread(self._chat.store.delete_session, conversation.session.id)
            for words in await asyncio.to_thread(self._chat.store.still_readable):
                self._screen.warn(words)
        except KvchatError as error:
            self._screen.warn(str(error))
        else:
            self._screen.tell("the temporary conversation is gone")
        self._screen.conversation_changed()


async def _nothing() -> None:
    return None
