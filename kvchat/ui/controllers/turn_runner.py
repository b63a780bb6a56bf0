"""The turns of all open conversations: in each one runs and others wait; on screen, what comes is drawn."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from itertools import groupby
from time import monotonic
from typing import Any, Protocol

from kvchat.app.services import (
    ChatService,
    ConversationOpened,
    ConversationView,
    FeedEvent,
    Produced,
    TurnEnded,
    TurnFailed,
)
from kvchat.chat.events import LoadingStarted, Prefill, TextDelta, TurnFinished, TurnStarted
from kvchat.errors import PoolExhausted
from kvchat.session.tree import SessionId, Turn, TurnId, path_token_ids
from kvchat.ui.state.conversation_tab import (
    ConversationTab,
    Draft,
    State,
    Unsent,
    message_not_stored,
    state_of,
    turns_before,
    unseen_words,
    unsent_message,
)
from kvchat.ui.state.pending_turn import PendingTurn as PendingTurn
from kvchat.ui.state.pending_turn import TurnKind as TurnKind
from kvchat.ui.terminal.garbage import GarbageSchedule
from kvchat.ui.widgets.answer import AnswerView
from kvchat.ui.widgets.transcript import Transcript

_LATE_S = 0.8
"""A key this soon after the end of an answer was pressed before that was seen."""
_LEAST_STOPPED_S = 0.5
"""Nobody sees that a shorter answer is being written, and stops it."""


class TurnListener(Protocol):
    """Who is told what happened."""

    def queue_changed(self) -> None: ...

    def turn_produced(self) -> None:
        """Something new has begun in a turn: `drain` is due. Called in the turn's thread."""
        ...

    def conversation_changed(self) -> None: ...

    def turn_failed(self, error: Exception, unsent: str) -> None:
        """A turn ended with an error; `unsent` is a message that was not stored."""
        ...

    def outgrown(self, fits_in: tuple[str, ...]) -> None:
        """The conversation on screen has no room in the cache; it would have some in these formats."""
        ...

    def warn(self, message: str) -> None: ...

    def warn_behind(self, conversation: ConversationView | None, message: str) -> None:
        """Tell something of a conversation that is not on screen; None: it was never made."""
        ...

    def turn_ended(self) -> None: ...

    def ended_behind(self, conversation: ConversationView) -> None:
        """A conversation that is not on screen has nothing left to do."""
        ...


class TurnRunner:
    """Runs the turns of all conversations, one at a time in each, and draws those of the one on screen.

    Args:
        system: the system prompt of new conversations, where nothing else is said.

    Attributes:
        temporary: the sessions that are deleted when they are left.
    """

    def __init__(
        self, chat: ChatService, transcript: Transcript, listener: TurnListener, *, system: str = ""
    ) -> None:
        self._chat = chat
        self._transcript = transcript
        self._listener = listener
        self._garbage = GarbageSchedule()
        self.system = system
        self.temporary: set[SessionId] = set()
        self._lane = ConversationTab(draft=Draft(system=system))
        self._behind: list[ConversationTab] = []
        self._answer: AnswerView | None = None
        self._question_id: TurnId | None = None
        self._drawing = asyncio.Lock()
        self._counted: tuple[Sequence[Turn], int] = (), 0
        self._outgrown: dict[State, tuple[str, ...]] = {}

    @property
    def conversation(self) -> ConversationView | None:
        """What is on screen; None for a draft."""
        return self._lane.conversation

    @property
    def place(self) -> object:
        """What stays the same while one conversation is on screen, also where it begins as a draft."""
        return self._lane

    @property
    def draft(self) -> Draft:
        return self._lane.draft

    @draft.setter
    def draft(self, draft: Draft) -> None:
        self._lane.draft = draft

    @property
    def queue(self) -> Sequence[PendingTurn]:
        """What waits for the running turn of the conversation on screen, or for the engine."""
        return self._lane.queue

    @property
    def is_running(self) -> bool:
        """Whether the conversation on screen is being answered."""
        return self._lane.feed.is_running

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs or waits in the conversation on screen."""
        return self._lane.is_busy

    @property
    def is_any_running(self) -> bool:
        return any(lane.feed.is_running for lane in self._lanes)

    @property
    def context_len(self) -> int:
        """Tokens of the conversation as stored. Asked often, so it is counted once for each state."""
        turns = self.conversation.turns if self.conversation else ()
        if turns is not self._counted[0]:
            self._counted = turns, len(path_token_ids(turns) or ())
        return self._counted[1]

    @property
    def behind(self) -> Sequence[ConversationView]:
        """What is being answered behind the screen."""
        return [lane.conversation for lane in self._behind if lane.conversation is not None]

    @property
    def _lanes(self) -> list[ConversationTab]:
        return [self._lane, *self._behind]

    def is_answering(self, session_id: SessionId) -> bool:
        """Whether a turn of this session runs or waits, on screen or behind it."""
        return any(
            lane.is_busy and lane.conversation is not None and lane.conversation.session.id == session_id
            for lane in self._lanes
        )

    def is_writing(self, conversation: ConversationView) -> bool:
        """Whether a turn's thread runs in this line of a session, on screen or behind it."""
        return any(lane.feed.is_writing and lane.holds(conversation) for lane in self._lanes)

    def is_writing_in(self, session_id: SessionId) -> bool:
        """Whether a turn's thread runs in any line of a session, also where it was begun just now."""
        writing = [lane.conversation or lane.answered for lane in self._lanes if lane.feed.is_writing]
        return any(one is not None and one.session.id == session_id for one in writing)

    def settle_garbage(self) -> None:
        """Call once when the engine is loaded."""
        self._garbage.settle()

    def look_for_garbage(self, *, is_quiet: bool) -> None:
        """Call now and then; `is_quiet`: the person does nothing just now."""
        self._garbage.look(is_quiet=is_quiet and not self.is_any_running)

    def release(self) -> None:
        self._garbage.release()

    def add(self, pending: PendingTurn) -> None:
        """Queue a turn; `start_next` runs it."""
        self._lane.queue.append(pending)
        self._listener.queue_changed()

    def start_next(self) -> bool:
        """Start the first waiting turn of each conversation in which none runs; return whether any was."""
        started = [lane for lane in self._lanes if lane.queue and not lane.feed.is_running]
        for lane in started:
            if not self.is_any_running:
                self._garbage.begin_turn()
            pending = lane.running = lane.queue.popleft()
            lane.answered, lane.is_stopping = None, False
            lane.feed.start(partial(self._produce, lane, pending), self._listener.turn_produced)
        if started:
            self._listener.queue_changed()
        return bool(started)

    def stop(self) -> str:
        """Ask the running answer on screen to stop, empty the queue, and return the queued text."""
        unsent = self._stop(self._lane)
        self._listener.queue_changed()
        return unsent

    def excuse_stop(self, pressed_s: float) -> bool:
        """Return whether a key was meant to stop the answer that had just ended; once for each answer."""
        ended_s, self._lane.ended_s = self._lane.ended_s, None
        if ended_s is None or self._lane.feed.took_s < _LEAST_STOPPED_S:
            return False
        return pressed_s - ended_s < _LATE_S

    def stop_all(self) -> str:
        """Do the same in every conversation, also behind the screen."""
        unsent = "\n".join(filter(None, map(self._stop, self._lanes)))
        self._behind = [lane for lane in self._behind if lane.is_busy]
        self._listener.queue_changed()
        return unsent

    def _stop(self, lane: ConversationTab) -> str:
        if lane.feed.is_running:
            lane.is_stopping = True  # first: the thread looks at it once it has said what it answers
            if lane.answered is not None:
                self._chat.stop(lane.answered)
        for pending in lane.queue:
            if pending.reading is not None:
                pending.reading.stop()  # it would hold its blocks
        unsent = "\n".join(pending.text for pending in lane.queue if pending.text)
        lane.queue.clear()
        return unsent

    def take_unsent(self) -> list[Unsent]:
        """Ask every answer to stop, and return what waits in all queues, which are empty then."""
        texts = [(lane.conversation, self._stop(lane)) for lane in self._lanes]
        return [Unsent(conversation=conversation, text=text) for conversation, text in texts if text]

    def wait(self, timeout_s: float) -> list[Unsent]:
        """Wait until what was stopped is stored, and return what was sent and has not got that far."""
        deadline_s = monotonic() + timeout_s
        for lane in self._lanes:
            lane.feed.join(max(0.0, deadline_s - monotonic()))
        texts = [(lane.conversation, message_not_stored(lane)) for lane in self._lanes]
        return [Unsent(conversation=conversation, text=text) for conversation, text in texts if text]

    async def show(self, conversation: ConversationView | None, draft: Draft | None = None) -> None:
        """Put another conversation, or a draft, on the screen. What is being answered goes on behind it."""
        async with self._drawing:  # else what is just being drawn would go on into the other one
            await _to_its_end(self._show(conversation, draft))

    async def _show(self, conversation: ConversationView | None, draft: Draft | None) -> None:
        if self._lane.is_busy and self._lane.holds(conversation):
            return
        if self._lane.is_busy:
            self._behind.append(self._lane)
            if self._lane.conversation is not None:
                self._chat.put_behind(self._lane.conversation)
        self._answer, self._question_id = None, None
        self._lane = self._take_lane(conversation) or ConversationTab(
            conversation, draft or Draft(system=self.system)
        )
        if self._lane.conversation is not None:
            self._chat.bring_forward(self._lane.conversation)
        session = self._lane.conversation.session if self._lane.conversation else None
        await self._transcript.show_turns(turns_before(self._lane), session)
        for event in list(self._lane.events):
            await self._draw(event)
        self._listener.queue_changed()
        self._listener.conversation_changed()
        if conversation is not None and (fits_in := self._outgrown.pop(state_of(conversation), None)):
            self._listener.outgrown(fits_in)

    def replace(self, conversation: ConversationView) -> None:
        """Go on with a conversation as it was opened anew; what waits there waits on, what runs goes on."""
        for lane in self._lanes:
            if lane.holds(conversation) and not lane.feed.is_running:
                lane.conversation = conversation

    def _take_lane(self, conversation: ConversationView | None) -> ConversationTab | None:
        lane = next((lane for lane in self._behind if lane.holds(conversation)), None)
        if lane is not None:
            self._behind.remove(lane)
        return lane

    async def drain(self) -> None:
        """Draw what came on screen since the last call, and note what came behind it."""
        async with self._drawing:
            await self._drain()

    async def _drain(self) -> None:
        for lane in list(self._behind):
            self._note_behind(lane)
        lane = self._lane
        taken = lane.feed.take()
        for kind, events in groupby(taken, key=_batch_key):
            if kind is TextDelta:
                deltas = [event for event in events if isinstance(event, TextDelta)]
                lane.events += deltas
                await self._draw_text(deltas)
            else:
                for event in events:
                    lane.events.append(event)
                    await self._draw(event)

    def _note_behind(self, lane: ConversationTab) -> None:
        lane.events += lane.feed.take()
        for event in lane.events:
            if isinstance(event, ConversationOpened) and lane.conversation is None:
                lane.conversation = event.conversation
                self._chat.put_behind(event.conversation)
                self._listener.conversation_changed()
        if not lane.events or not isinstance(lane.events[-1], TurnEnded):
            return
        failure = next((event for event in lane.events if isinstance(event, TurnFailed)), None)
        unsent = "" if failure is None else unsent_message(lane, lane.events)
        self._tell_behind(lane)
        self._end(lane)
        if not lane.queue:
            self._behind.remove(lane)
            if lane.conversation is not None:
                self._listener.ended_behind(lane.conversation)
        if failure is not None:
            self._listener.turn_failed(failure.error, unsent)
        self._listener.turn_ended()

    def _tell_behind(self, lane: ConversationTab) -> None:
        """Pass on what would have been told if the answer had come on screen; a format is offered there."""
        words, fits_in = unseen_words(lane.events)
        for message in words:
            self._listener.warn_behind(lane.conversation, message)
        if fits_in and lane.conversation is not None:
            self._outgrown[state_of(lane.conversation)] = fits_in

    def forget_outgrown(self) -> None:
        """Call when an engine is loaded: it may have room for what another had none for."""
        self._outgrown.clear()

    def _end(self, lane: ConversationTab) -> None:
        lane.running = None
        lane.ended_s = monotonic()
        lane.events.clear()
        if not self.is_any_running:
            self._garbage.end_turn()

    def _produce(self, lane: ConversationTab, pending: PendingTurn) -> Iterator[Produced]:
        """Run a turn; in the feed's thread."""
        conversation = lane.conversation
        if conversation is None:
            conversation = self._chat.create(title=lane.draft.title, system=lane.draft.system)
            lane.answered = conversation  # first: what is temporary and not being written may be deleted
            if lane.draft.is_temporary:
                self.temporary.add(conversation.session.id)
            yield ConversationOpened(conversation=conversation)
        lane.answered = conversation
        with conversation.stoppable():
            if lane.is_stopping:
                self._chat.stop(conversation)
            if pending.reading is not None:
                pending.reading.hand_over(conversation)
            yield from pending.run(self._chat, conversation)

    async def _draw(self, event: FeedEvent) -> None:
        match event:
            case ConversationOpened(conversation=conversation):
                self._lane.conversation = conversation
                self._lane.draft = Draft()
                self._listener.conversation_changed()
            case TurnStarted():
                await self._draw_start(event)
            case LoadingStarted() if self._answer is not None:
                self._answer.show_loading(event.estimate)
            case Prefill() if self._answer is not None:
                self._answer.show_prefill(event)
            case TurnFinished():
                await self._draw_finish(event)
            case TurnFailed(error=error):
                await self._draw_failure(error)
            case TextDelta():
                await self._draw_text([event])
            case TurnEnded():
                self._end(self._lane)
                self._listener.turn_ended()

    async def _draw_start(self, event: TurnStarted) -> None:
        first = event.question or event.answer
        self._question_id = event.question.id if event.question else None
        await self._transcript.cut_after(first.parent_id)
        self._answer = await self._transcript.begin_turn(event.question, event.answer)
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
        answer, self._answer, self._question_id = self._answer, None, None
        if answer is not None:
            await answer.finish(event.answer)
        if event.error:
            self._listener.turn_failed(RuntimeError(event.error), "")
        if event.fits_in:
            self._listener.outgrown(event.fits_in)
        for words in event.notices:
            self._listener.warn(words)

    async def _draw_failure(self, error: Exception) -> None:
        """Show what is stored now: a question that the engine refused was taken back."""
        answer, self._answer = self._answer, None
        if answer is not None:
            await answer.give_up()
        kept = self.conversation.turns if self.conversation else ()
        question_id, self._question_id = self._question_id, None
        is_kept = question_id is not None and any(turn.id == question_id for turn in kept)
        await self._transcript.cut_after(kept[-1].id if kept else None)
        pending = self._lane.running
        self._listener.turn_failed(error, pending.text if pending and not is_kept else "")
        if isinstance(error, PoolExhausted) and error.fits_in:
            self._listener.outgrown(error.fits_in)


async def _to_its_end(drawing: Coroutine[Any, Any, None]) -> None:
    """Wait for what must not be left half drawn; who is cancelled meanwhile is so once it is drawn."""
    task = asyncio.ensure_future(drawing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # who is cancelled is told nothing else
        raise


def _batch_key(event: FeedEvent) -> type | None:
    return TextDelta if isinstance(event, TextDelta) else None
