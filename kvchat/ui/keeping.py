"""Keeps what was written and not sent when the window closes, and gives it back when it is opened again."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Protocol

from kvchat.errors import KvchatError
from kvchat.ui.attaching import Attaching
from kvchat.ui.attachments import before_message
from kvchat.ui.bridge import ConversationView, UnsentTexts
from kvchat.ui.courses import Courses
from kvchat.ui.desk import Desk
from kvchat.ui.turns import Turns, Unsent
from kvchat.ui.widgets.prompt import Prompt

log = logging.getLogger(__name__)

_STORED_WITHIN_S = 5.0


class KeepingDesk(Desk, Protocol):
    """What is needed of the screen."""

    prompt: Prompt

    def give_back(self, text: str) -> None: ...


class Keeping:
    """Puts unsent messages on the shelf and takes them from there."""

    def __init__(
        self, screen: KeepingDesk, shelf: UnsentTexts, turns: Turns, courses: Courses, attaching: Attaching
    ) -> None:
        self._screen = screen
        self._shelf = shelf
        self._turns = turns
        self._courses = courses
        self._attaching = attaching
        self._has_told = False
        self._kept: set[tuple[str | None, str]] = set()
        """What is on the shelf from this window already: a window may be told to close more than once."""

    def keep_all(self) -> None:
        """Stop all answers, and keep what waited behind them, in edits and in the prompt.

        Raises:
            StorageError: it cannot be written.
        """
        self._keep(self._take_all())

    def leaves(self, *, is_wish: bool) -> bool:
        """Keep everything for the window to be closed; return whether it may be.

        Args:
            is_wish: the person asks for it, and stays the first time that something cannot be kept.
        """
        unsent = self._take_all()
        try:
            self._keep(unsent)
            self._keep(self._turns.wait(_STORED_WITHIN_S))
        except KvchatError as error:
            log.error("%s", error)
            if is_wish and not self._has_told:
                self._has_told = True
                self._screen.prompt.set_text("\n".join(one.text for one in unsent))
                self._screen.warn(f"{error}\nctrl+q again leaves all the same")
                return False
        return True

    async def give_back(self, conversation: ConversationView | None) -> None:
        """Put what is kept for a conversation into the prompt."""
        session_id = None if conversation is None else conversation.session.id
        try:
            with ExitStack() as stack:
                lent = await asyncio.to_thread(stack.enter_context, self._shelf.lent(session_id))
                self._kept = {(owner, kept) for owner, kept in self._kept if owner != session_id}
                if lent.complaint:
                    self._screen.warn(lent.complaint)
                if lent.text:
                    self._screen.give_back(lent.text)
                    self._screen.tell("what you had written and not sent is in the prompt again")
        except KvchatError as error:
            self._screen.warn(str(error))

    def _in_prompt(self) -> list[str]:
        opened = None if self._courses.editing is None else self._courses.editing.text
        drafts = [text for text in self._screen.prompt.drafts if text != opened]  # unchanged, it is no draft
        last = drafts.pop() if drafts else ""
        return [*drafts, before_message(self._attaching.attachments) + last]

    def _take_all(self) -> list[Unsent]:
        here = self._turns.conversation
        texts = [*self._courses.asked, *self._in_prompt()]
        return [*self._turns.take_unsent(), *(Unsent(conversation=here, text=text) for text in texts if text)]

    def _keep(self, unsent: Iterable[Unsent]) -> None:
        for one in unsent:
            session_id = None if one.conversation is None else one.conversation.session.id
            if (session_id, one.text) not in self._kept:
                self._shelf.keep(session_id, one.text)
                self._kept.add((session_id, one.text))
