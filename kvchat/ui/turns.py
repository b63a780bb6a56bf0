"""The turns of the conversation on screen: one runs, others wait, and what comes is drawn."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Protocol

from kvchat.chat import Loading, Prefill, TextDelta, TurnFinished, TurnStarted
from kvchat.session.tree import TurnId, path_token_ids
from kvchat.ui.bridge import (
    ChatService,
    ConversationOpened,
    ConversationView,
    FeedEvent,
    Produced,
    TurnEnded,
    TurnFailed,
    TurnFeed,
)
from kvchat.ui.garbage import GarbageSchedule
from kvchat.ui.widgets.answer import AnswerView
from kvchat.ui.widgets.transcript import Transcript


class TurnKind(StrEnum):
    SEND = "send"
    EDIT = "edit"
    RETRY = "retry"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTurn:
    """A turn that waits. `text` is the message of SEND and EDIT; `turn_id` the message that EDIT changes."""

    kind: TurnKind
    text: str = ""
    turn_id: TurnId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A conversation that is not stored yet: it is made with its first message."""

    title: str = ""
    system: str = ""


class TurnListener(Protocol):
    """Who is told what happened."""

    def queue_changed(self) -> None: ...

    def conversation_changed(self) -> None: ...

    def turn_failed(self, error: Exception, unsent: str) -> None:
        """A turn ended with an error; `unsent` is a message that was not stored."""
        ...

    def turn_ended(self) -> None: ...


class Turns:
    """Runs the turns of one conversation at a time.

    Attributes:
        conversation: what is open; None for a draft.
        draft: what a new conversation will be made with.
        queue: turns that wait for the running one, or for the engine.
    """

    def __init__(self, chat: ChatService, transcript: Transcript, listener: TurnListener) -> None:
        self.conversation: ConversationView | None = None
        self.draft = Draft()
        self.queue: deque[PendingTurn] = deque()
        self._chat = chat
        self._transcript = transcript
        self._listener = listener
        self._feed = TurnFeed()
        self._garbage = GarbageSchedule()
        self._running: PendingTurn | None = None
        self._answer: AnswerView | None = None
        self._question_id: TurnId | None = None

    @property
    def is_running(self) -> bool:
        return self._feed.is_running

    @property
    def context_len(self) -> int:
        """Tokens of the conversation as stored."""
        turns = self.conversation.turns if self.conversation else ()
        return len(path_token_ids(turns) or ())

    def settle_garbage(self) -> None:
        """Call once when the engine is loaded."""
        self._garbage.settle()

    def release(self) -> None:
        self._garbage.release()

    def add(self, pending: PendingTurn) -> None:
        """Queue a turn; `start_next` runs it."""
        self.queue.append(pending)
        self._listener.queue_changed()

    def start_next(self) -> bool:
        """Start the first waiting turn if none runs; return whether one was started."""
        if self.is_running or not self.queue:
            return False
        pending = self._running = self.queue.popleft()
        self._garbage.begin_turn()
        self._feed.start(lambda: self._produce(pending))
        self._listener.queue_changed()
        return True

    def stop(self) -> str:
        """Ask the running answer to stop, empty the queue, and return the queued text."""
        if self.is_running and self.conversation is not None:
            self._chat.stop(self.conversation)
        unsent = "\n".join(pending.text for pending in self.queue if pending.text)
        self.queue.clear()
        self._listener.queue_changed()
        return unsent

    def wait(self, timeout_s: float) -> None:
        """Stop what runs and wait until it is stored."""
        self.stop()
        self._feed.join(timeout_s)

    async def show(self, conversation: ConversationView | None) -> None:
        """Put another conversation, or a draft, on the screen."""
        assert not self.is_running
        self.conversation = conversation
        await self._transcript.show_turns(conversation.turns if conversation else ())
        self._listener.conversation_changed()

    async def drain(self) -> None:
        """Draw everything that came since the last call; neighbouring pieces of text are drawn as one."""
        for kind, events in groupby(self._feed.take(), key=_batch_key):
            if kind is TextDelta:
                await self._draw_text([event for event in events if isinstance(event, TextDelta)])
            else:
                for event in events:
                    await self._draw(event)

    def _produce(self, pending: PendingTurn) -> Iterator[Produced]:
        """Run a turn; in the feed's thread."""
        conversation = self.conversation
        if conversation is None:
            conversation = self._chat.create(title=self.draft.title, system=self.draft.system)
            yield ConversationOpened(conversation=conversation)
        match pending.kind:
            case TurnKind.SEND:
                yield from self._chat.send(conversation, pending.text)
            case TurnKind.EDIT:
                assert pending.turn_id is not None
                yield from self._chat.edit(conversation, pending.turn_id, pending.text)
            case TurnKind.RETRY:
                yield from self._chat.retry(conversation)
            case TurnKind.CONTINUE:
                yield from self._chat.continue_answer(conversation)

    async def _draw(self, event: FeedEvent) -> None:
        match event:
            case ConversationOpened(conversation=conversation):
                self.conversation = conversation
                self.draft = Draft()
                self._listener.conversation_changed()
            case TurnStarted():
                await self._draw_start(event)
            case Loading() if self._answer is not None:
                self._answer.show_loading(event.estimate)
            case Prefill() if self._answer is not None:
                self._answer.show_prefill(event)
            case TurnFinished():
                await self._draw_finish(event)
            case TurnFailed(error=error):
                await self._draw_failure(error)
            case TurnEnded():
                self._garbage.end_turn()
                self._running = None
                self._listener.turn_ended()

    async def _draw_start(self, event: TurnStarted) -> None:
        first = event.question or event.answer
        self._question_id = event.question.id if event.question else None
        await self._transcript.cut_after(first.parent_id)
        if event.question is not None:
            await self._transcript.add_question(event.question)
        self._answer = await self._transcript.begin_answer(event.answer)
        self._listener.conversation_changed()

    async def _draw_text(self, deltas: list[TextDelta]) -> None:
        if self._answer is None:
            return
        reasoning = "".join(delta.text for delta in deltas if delta.reasoning)
        text = "".join(delta.text for delta in deltas if not delta.reasoning)
        if reasoning:
            self._answer.add_reasoning(reasoning)
        if text:
            await self._answer.add_text(text)

    async def _draw_finish(self, event: TurnFinished) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            await answer.finish(event.answer)
        if event.error:
            self._listener.turn_failed(RuntimeError(event.error), "")

    async def _draw_failure(self, error: Exception) -> None:
        """Show what is stored now: a question that the engine refused was taken back."""
        answer, self._answer = self._answer, None
        if answer is not None:
            await answer.give_up()
        kept = self.conversation.turns if self.conversation else ()
        question_id, self._question_id = self._question_id, None
        is_kept = question_id is not None and any(turn.id == question_id for turn in kept)
        await self._transcript.cut_after(kept[-1].id if kept else None)
        pending = self._running
        self._listener.turn_failed(error, pending.text if pending and not is_kept else "")


def _batch_key(event: FeedEvent) -> type | None:
    return TextDelta if isinstance(event, TextDelta) else None
