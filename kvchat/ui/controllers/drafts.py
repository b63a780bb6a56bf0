"""Keeps what was written and not sent when the window closes, and gives it back when it is opened again."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from kvchat.errors import KvchatError
from kvchat.session.tree import SessionId
from kvchat.text.attached_files import before_message, words_of
from kvchat.ui.controllers.composer import ComposerController
from kvchat.ui.controllers.revisions import RevisionController
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.state.conversation_tab import Unsent, branch_key

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation

log = logging.getLogger(__name__)

_STORED_WITHIN_S = 5.0

_Owner = tuple[str | None, str | None]
"""The session and the branch that a text was written on; nothing, where no conversation has begun."""


class _LeftMeanwhile(Exception):
    """The conversation is not shown any more."""


class DraftController:
    """Keeps unsent messages in the store and takes them from there."""

    def __init__(
        self, screen: ScreenServices, composer: ComposerController, revisions: RevisionController
    ) -> None:
        self._screen = screen
        self._store = screen.chat.store
        self._turns = screen.turns
        self._revisions = revisions
        self._composer = composer
        self._has_told = False
        self._problem = ""
        self._left: list[Unsent] = []
        """What was written, or waited and could not be kept, for conversations that are not shown."""
        self._kept: set[tuple[_Owner, str]] = set()
        """What this window has stored already: a window may be told to close more than once."""

    def keep_all(self) -> None:
        """Stop all answers, and keep what waited behind them, in edits and in the prompt."""
        self._keep([*self._left, *self._turns.take_unsent(), *self._typed()])

    def leave(self) -> None:
        """Leave drafts to their conversation, but for what stands in the prompt, which the person sees."""
        hidden = self._screen.prompt.take_hidden_drafts()
        self._left += [Unsent(conversation=self._turns.conversation, text=text) for text in hidden]

    def leaves(self, *, is_asked: bool) -> bool:
        """Keep everything for the window to be closed; return whether it may be.

        Args:
            is_asked: the person asks for it, and stays the first time that something cannot be kept.
        """
        may_stay = is_asked and not self._has_told
        self._left = self._keep([*self._left, *self._turns.take_unsent()])
        is_kept = not self._left
        if is_kept or not may_stay:
            is_kept &= not self._keep(self._typed())
            is_kept &= not self._keep(self._turns.wait(_STORED_WITHIN_S))
        if is_kept or not may_stay:
            return True
        self._has_told = True
        self._put_back()
        self._screen.warn(f"{self._problem}\nctrl+q again leaves all the same")
        return False

    async def give_back(self, conversation: "Conversation | None") -> None:
        """Put what is kept for a conversation into the prompt, if it is still shown then."""
        owner = _owner(conversation)
        elsewhere = await asyncio.to_thread(self._other_branches, conversation)
        with suppress(_LeftMeanwhile), ExitStack() as stack:
            lent = await asyncio.to_thread(stack.enter_context, self._store.unsent.lent(owner[0], elsewhere))
            if lent.complaint:
                self._screen.warn(lent.complaint)
            if _owner(self._turns.conversation) != owner:
                raise _LeftMeanwhile  # so that it stays where it is
            self._kept = {(kept_for, text) for kept_for, text in self._kept if kept_for != owner}
            if lent.text:
                self._composer.give_back(lent.text)
                self._screen.tell("Unsent draft restored")
            self._put_back()

    def _other_branches(self, conversation: "Conversation | None") -> frozenset[str]:
        if conversation is None:
            return frozenset()
        names = {branch.name for branch in self._store.branches(conversation.session.id)}
        return frozenset(names - {conversation.branch.name})

    def _is_gone(self, session_id: str) -> bool:
        """Whether another process has deleted a session; not where that cannot be told."""
        try:
            return not self._store.branches(SessionId(session_id))
        except KvchatError:
            return False

    def _put_back(self) -> None:
        """Put what could not be kept for the conversation on screen into the prompt."""
        shown = _owner(self._turns.conversation)
        here = [one for one in self._left if _owner(one.conversation) == shown]
        self._left = [one for one in self._left if one not in here]
        for one in reversed(here):
            self._composer.give_back(one.text)

    def _typed(self) -> list[Unsent]:
        here = self._turns.conversation
        composer, editing = self._composer, self._revisions.editing
        opened = None if editing is None else words_of(editing.text)
        drafts = [text for text in self._screen.prompt.drafts if text != opened]  # unchanged, it is no draft
        last = drafts.pop() if drafts else ""
        beside = "" if editing is not None and not last else before_message(composer.attachments)
        waiting = [*self._revisions.asked, *composer.waiting, before_message(composer.put_aside)]
        return [Unsent(conversation=here, text=text) for text in (*waiting, *drafts, beside + last) if text]

    def _keep(self, unsent: Iterable[Unsent]) -> list[Unsent]:
        """Keep what is not kept yet, and return what cannot be."""
        failed = []
        for one in unsent:
            session_id, branch = owner = _owner(one.conversation)
            if (owner, one.text) in self._kept:
                continue
            try:
                if session_id is not None and self._is_gone(session_id):
                    session_id = branch = None  # nobody would ever open it
                self._store.unsent.keep(session_id, one.text, branch)
            except KvchatError as error:
                log.error("%s", error)
                self._problem = str(error)
                failed.append(one)
            else:
                self._kept.add((owner, one.text))
        return failed


def _owner(conversation: "Conversation | None") -> _Owner:
    return (None, None) if conversation is None else branch_key(conversation)
