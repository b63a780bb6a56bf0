"""Revises the conversation on screen (undo, drop, edit), once the person has seen what that costs."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from kvchat.chat.events import EditCost, Revision
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.errors import KvchatError
from kvchat.session.tree import Role, Turn
from kvchat.text.attached_files import before_message
from kvchat.text.revision import (
    COSTLY_TOKENS,
    changed_words,
    drop_words,
    edit_words,
    excerpt,
    heading_words,
    undo_words,
)
from kvchat.ui.controllers.composer import ComposerController
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.state.conversation_tab import QueuedTurn

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation

_REST_S = 0.2
"""What an edit costs is looked up when typing has rested for this long."""

Plan = Callable[[], Revision]
Words = Callable[[Revision, EditCost, CacheSnapshot | None], str]


class RevisionController:
    """Edits, undos, and exchanges that are left out.

    Attributes:
        editing: the message that is being changed in the prompt, as far as it has got.
        number: which of the person's messages that is, from 1.
        costs: what sending it would compute, in ever fewer words; empty until that is known.
        asked: changed messages whose cost is being looked up, or agreed to.
    """

    def __init__(self, screen: ScreenServices, composer: ComposerController) -> None:
        self._screen = screen
        self._chat = screen.chat
        self._turns = screen.turns
        self._composer = composer
        self.editing: Turn | None = None
        self.number = 0
        self.costs: Sequence[str] = ()
        self.asked: list[str] = []

    # Edits

    def begin_edit(self, question: Turn) -> None:
        """Put an earlier message into the prompt; sending it goes on from there."""
        self.editing, self.costs = question, ()
        before = takewhile(lambda turn: turn.id != question.id, self._turns.stored.turns)
        self.number = 1 + sum(turn.role is Role.USER for turn in before)
        self._composer.begin_edit(question.text)
        self._screen.draw_heading()

    def end_edit(self) -> None:
        self.editing, self.costs = None, ()
        self._composer.end_edit()
        self._screen.draw_heading()

    def text_changed(self, text: str) -> None:
        """Look up what the edit costs by now, when typing rests."""
        if self.editing is not None:
            self._screen.begin(partial(self._show_cost, text), group="look")

    def send_edit(self, text: str) -> None:
        """Say what an edit costs, ask where that is much, and carry it out."""
        question = self.editing
        assert question is not None
        self.end_edit()
        self._screen.begin(partial(self._send_edit, self._turns.stored, question, text))

    async def _show_cost(self, text: str) -> None:
        await asyncio.sleep(_REST_S)
        question, conversation = self.editing, self._turns.conversation
        if question is None or conversation is None:
            return
        costs: Sequence[str] = ()
        with suppress(KvchatError):
            whole = before_message(self._composer.attachments) + text
            cost = await asyncio.to_thread(self._chat.edit_cost, conversation, question.id, whole)
            costs = heading_words(cost, self._screen.snapshot)
        if self.editing is question:
            self.costs = costs
            self._screen.draw_heading()

    async def _send_edit(self, conversation: "Conversation", question: Turn, text: str) -> None:
        self.asked.append(text)
        self._screen.queue_changed()
        words = await self._agreed(conversation, question, text)
        self.asked.remove(text)
        self._screen.queue_changed()
        if conversation is not self._turns.conversation:
            self._composer.give_back(text)
            self._screen.warn("the changed message was not sent: you have left its conversation; here it is")
        elif words is None:
            self.begin_edit(replace(question, text=text))
        else:
            self._screen.tell(words)
            edit = QueuedTurn(run=lambda chat, here: chat.edit(here, question.id, text), text=text)
            self._screen.queue(edit)

    async def _agreed(self, conversation: "Conversation", question: Turn, text: str) -> str | None:
        """Return what an edit costs, in words; None where it cannot be made, or is not to be."""
        try:
            cost = await asyncio.to_thread(self._chat.edit_cost, conversation, question.id, text)
        except KvchatError as error:
            self._screen.warn(str(error))
            return None
        words = edit_words(cost, self._screen.snapshot)
        if cost.computed_tokens < COSTLY_TOKENS or conversation is not self._turns.conversation:
            return words
        return words if await self._screen.dialogs.confirm("Change this message?", words) else None

    # Undos, and what is left out

    def undo(self, num: int) -> None:
        """Take back the last messages with their answers, if the person agrees."""
        conversation = self._turns.stored
        one, more = "your last message and its answer", f"your last {num} messages and their answers"
        plan = partial(self._chat.plan_undo, conversation, num)
        question = f"Take back {one if num == 1 else more}?"
        self._screen.begin(partial(self._revise, conversation, question, plan, undo_words))

    def drop(self, question: Turn) -> None:
        """Leave an exchange out and keep what follows it, if the person agrees."""
        conversation = self._turns.stored
        plan = partial(self._chat.plan_drop, conversation, question.id)
        ask = "Remove this message and its answer?"
        self._screen.begin(partial(self._revise, conversation, ask, plan, drop_words))

    async def _revise(self, conversation: "Conversation", ask: str, plan: Plan, words: Words) -> None:
        seen = conversation.turns
        if not self._screen.is_engine_ready:
            self._screen.tell("what it costs is known when the model is loaded")
        revision = await asyncio.to_thread(plan)
        cost = await asyncio.to_thread(self._chat.revision_cost, conversation, revision)
        price = words(revision, cost, self._screen.snapshot)
        if not await self._screen.dialogs.confirm(ask, f"{excerpt(revision)}\n\n{price}"):
            return
        if conversation is not self._turns.conversation:
            self._screen.warn("another conversation is on the screen now; nothing was changed")
            return
        if conversation.turns != seen or self._turns.is_running:
            self._screen.warn("the conversation has gone on since; nothing was changed: ask again")
            return
        await asyncio.to_thread(self._chat.revise, conversation, revision)
        if conversation is not self._turns.conversation:
            return
        await self._turns.show(conversation)
        branch = conversation.branch.name
        self._screen.tell(changed_words(branch, revision, cost, self._screen.snapshot))
