"""The turns of all open conversations: in each one runs and others wait; on screen, what comes is drawn."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from itertools import groupby
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from kvchat.app.turn_thread import ConversationOpened, FeedEvent, Produced, TurnEnded, TurnFailed
from kvchat.chat.events import TurnFinished, TurnStarted
from kvchat.engine.api.events import LoadPlanned, PrefillProgress
from kvchat.errors import ContextOverflow, PoolExhausted
from kvchat.session.template.text_stream import Piece
from kvchat.session.tree import SessionId, Turn, path_token_ids
from kvchat.text.answer_footer import overflow_text
from kvchat.text.fit_text import one_line
from kvchat.ui.state.conversation_tab import (
    ConversationTab,
    Draft,
    QueuedTurn,
    State,
    Unsent,
    message_not_stored,
    state_of,
    turns_before,
    unseen_words,
    unsent_message,
)
from kvchat.ui.terminal.garbage import GarbageSchedule
from kvchat.ui.widgets.answer import AnswerView
from kvchat.ui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation
    from kvchat.chat.service import Chat

_LATE_S = 0.8
"""A key this soon after the end of an answer was pressed before that was seen."""
_OWN_BRANCH = (
    "This message is on a branch of its own, {0}: another window has added messages to {1}"
    " · /switch {1} opens those"
)
_LEAST_STOPPED_S = 0.5
"""Nobody sees that a shorter answer is being written, and stops it."""


class TurnScreen(Protocol):
    """The screen as the runner sees it."""

    @property
    def chat(self) -> "Chat": ...

    def warn(self, message: str) -> None: ...

    def conversation_changed(self) -> None: ...

    def queue_changed(self) -> None: ...

    def turn_produced(self) -> None:
        """Something new has begun in a turn: `TurnRunner.drain` is due. Called in the turn's thread."""
        ...

    def turn_ended(self) -> None: ...

    def turn_failed(self, error: Exception, unsent: str) -> None:
        """A turn ended with an error; `unsent` is a message that was not stored."""
        ...

    def outgrown(self, fits_in: tuple[str, ...]) -> None:
        """The conversation on screen has no room in the cache; it would have some in these formats."""
        ...

    def warn_behind(self, conversation: "Conversation | None", message: str) -> None:
        """Tell something of a conversation that is not on screen; None: it was never made."""
        ...

    def ended_behind(self, conversation: "Conversation") -> None:
        """A conversation that is not on screen has nothing left to do."""
        ...


class TurnRunner:
    """Runs the turns of all conversations, one at a time in each, and draws those of the one on screen.

    Args:
        system: the system prompt of new conversations, where nothing else is said.

    Attributes:
        tab: what is on screen; the same object while one conversation is, also where it begins as a draft.
        temporary: the sessions that are deleted when they are left.
        garbage: when memory is looked through.
    """

    def __init__(self, screen: TurnScreen, transcript: Transcript, *, system: str) -> None:
        self._chat = screen.chat
        self._transcript = transcript
        self._screen = screen
        self.garbage = GarbageSchedule()
        self.system = system
        self.temporary: set[SessionId] = set()
        self.tab = ConversationTab(draft=Draft(system=system))
        self._behind: list[ConversationTab] = []
        self._answer: AnswerView | None = None
        self._drawing = asyncio.Lock()
        self._counted: tuple[Sequence[Turn], int] = (), 0
        self._outgrown: dict[State, tuple[str, ...]] = {}

    @property
    def conversation(self) -> "Conversation | None":
        return self.tab.conversation

    @property
    def stored(self) -> "Conversation":
        """What is on screen, where something has been said in it already."""
        assert self.tab.conversation is not None
        return self.tab.conversation

    @property
    def is_running(self) -> bool:
        return self.tab.feed.is_running

    @property
    def is_busy(self) -> bool:
        return self.tab.is_busy

    @property
    def is_any_running(self) -> bool:
        return any(tab.feed.is_running for tab in self._tabs)

    @property
    def context_len(self) -> int:
        """Tokens of the conversation as stored. Asked often, so it is counted once for each state."""
        turns = self.conversation.turns if self.conversation else ()
        if turns is not self._counted[0]:
            self._counted = turns, len(path_token_ids(turns) or ())
        return self._counted[1]

    @property
    def behind(self) -> "Sequence[Conversation]":
        return [tab.conversation for tab in self._behind if tab.conversation is not None]

    @property
    def _tabs(self) -> list[ConversationTab]:
        return [self.tab, *self._behind]

    def is_answering(self, session_id: SessionId) -> bool:
        """Whether a turn of this session runs or waits, on screen or behind it."""
        return any(
            tab.is_busy and tab.conversation is not None and tab.conversation.session.id == session_id
            for tab in self._tabs
        )

    def is_writing(self, conversation: "Conversation") -> bool:
        """Whether a turn's thread runs in this line of a session, on screen or behind it."""
        return any(tab.feed.is_writing and tab.holds(conversation) for tab in self._tabs)

    def is_writing_in(self, session_id: SessionId) -> bool:
        """Whether a turn's thread runs in any line of a session, also where it was begun just now."""
        writing = [tab.conversation or tab.answered for tab in self._tabs if tab.feed.is_writing]
        return any(one is not None and one.session.id == session_id for one in writing)

    def add(self, pending: QueuedTurn) -> None:
        self.tab.queue.append(pending)
        self._screen.queue_changed()

    def start_next(self) -> bool:
        """Start the first waiting turn of each conversation in which none runs; return whether any was."""
        started = [tab for tab in self._tabs if tab.queue and not tab.feed.is_running]
        for tab in started:
            if not self.is_any_running:
                self.garbage.begin_turn()
            pending = tab.running = tab.queue.popleft()
            tab.answered, tab.is_stopping = None, False
            tab.feed.start(partial(self._produce, tab, pending), self._screen.turn_produced)
        if started:
            self._screen.queue_changed()
        return bool(started)

    def stop(self) -> str:
        """Ask the running answer on screen to stop, empty the queue, and return the queued text."""
        unsent = self._stop(self.tab)
        self._screen.queue_changed()
        return unsent

    def excuse_stop(self, pressed_s: float) -> bool:
        """Return whether a key was meant to stop the answer that had just ended; once for each answer."""
        ended_s, self.tab.ended_s = self.tab.ended_s, None
        if ended_s is None or self.tab.feed.took_s < _LEAST_STOPPED_S:
            return False
        return pressed_s - ended_s < _LATE_S

    def stop_all(self) -> str:
        """Do the same in every conversation, also behind the screen."""
        unsent = "\n".join(filter(None, map(self._stop, self._tabs)))
        self._behind = [tab for tab in self._behind if tab.is_busy]
        self._screen.queue_changed()
        return unsent

    def _stop(self, tab: ConversationTab) -> str:
        if tab.feed.is_running:
            tab.is_stopping = True  # first: the thread looks at it once it has said what it answers
            if tab.answered is not None:
                self._chat.stop(tab.answered)
        for pending in tab.queue:
            if pending.reading is not None:
                pending.reading.stop()  # it would hold its blocks
        unsent = "\n".join(pending.text for pending in tab.queue if pending.text)
        tab.queue.clear()
        return unsent

    def take_unsent(self) -> list[Unsent]:
        """Ask every answer to stop, and return what waits in all queues, which are empty then."""
        texts = [(tab.conversation, self._stop(tab)) for tab in self._tabs]
        return [Unsent(conversation=conversation, text=text) for conversation, text in texts if text]

    def wait(self, timeout_s: float) -> list[Unsent]:
        """Wait until what was stopped is stored, and return what was sent and has not got that far."""
        deadline_s = monotonic() + timeout_s
        for tab in self._tabs:
            tab.feed.join(max(0.0, deadline_s - monotonic()))
        texts = [(tab.conversation, message_not_stored(tab)) for tab in self._tabs]
        return [Unsent(conversation=conversation, text=text) for conversation, text in texts if text]

    async def show(self, conversation: "Conversation | None", draft: Draft | None = None) -> None:
        """Put another conversation, or a draft, on the screen. What is being answered goes on behind it."""
        async with self._drawing:  # else what is just being drawn would go on into the other one
            await _to_its_end(self._show(conversation, draft))

    async def _show(self, conversation: "Conversation | None", draft: Draft | None) -> None:
        if self.tab.is_busy and self.tab.holds(conversation):
            return
        if self.tab.is_busy:
            self._behind.append(self.tab)
            if self.tab.conversation is not None:
                self._chat.put_behind(self.tab.conversation)
        self._answer = None
        tab = next((tab for tab in self._behind if tab.holds(conversation)), None)
        if tab is not None:
            self._behind.remove(tab)
        self.tab = tab or ConversationTab(conversation, draft or Draft(system=self.system))
        if self.tab.conversation is not None:
            self._chat.bring_forward(self.tab.conversation)
        session = self.tab.conversation.session if self.tab.conversation else None
        await self._transcript.show_turns(turns_before(self.tab), session)
        for event in list(self.tab.events):
            await self._draw(event)
        self._screen.queue_changed()
        self._screen.conversation_changed()
        if conversation is not None and (fits_in := self._outgrown.pop(state_of(conversation), None)):
            self._screen.outgrown(fits_in)

    def replace(self, conversation: "Conversation") -> None:
        """Go on with a conversation as it was opened anew; what waits there waits on, what runs goes on."""
        for tab in self._tabs:
            if tab.holds(conversation) and not tab.feed.is_running:
                tab.conversation = conversation

    async def drain(self) -> None:
        """Draw what came on screen since the last call, and note what came behind it."""
        async with self._drawing:
            for tab in list(self._behind):
                self._note_behind(tab)
            tab = self.tab
            for is_text, events in groupby(tab.feed.take(), key=lambda event: isinstance(event, Piece)):
                if is_text:
                    deltas = [event for event in events if isinstance(event, Piece)]
                    tab.events += deltas
                    self._draw_text(deltas)
                else:
                    for event in events:
                        tab.events.append(event)
                        await self._draw(event)

    def _note_behind(self, tab: ConversationTab) -> None:
        tab.events += tab.feed.take()
        for event in tab.events:
            if isinstance(event, ConversationOpened) and tab.conversation is None:
                tab.conversation = event.conversation
                self._chat.put_behind(event.conversation)
                self._screen.conversation_changed()
        if not tab.events or not isinstance(tab.events[-1], TurnEnded):
            return
        failure = next((event for event in tab.events if isinstance(event, TurnFailed)), None)
        unsent = "" if failure is None else unsent_message(tab, tab.events)
        words, fits_in = unseen_words(tab.events)
        for message in words:
            self._screen.warn_behind(tab.conversation, message)
        if fits_in and tab.conversation is not None:  # a format is offered when it comes on screen
            self._outgrown[state_of(tab.conversation)] = fits_in
        self._end(tab)
        if not tab.queue:
            self._behind.remove(tab)
            if tab.conversation is not None:
                self._screen.ended_behind(tab.conversation)
        if failure is not None:
            self._screen.turn_failed(failure.error, unsent)
        self._screen.turn_ended()

    def forget_outgrown(self) -> None:
        """Call when an engine is loaded: it may have room for what another had none for."""
        self._outgrown.clear()

    def _end(self, tab: ConversationTab) -> None:
        tab.running = None
        tab.ended_s = monotonic()
        tab.events.clear()
        if not self.is_any_running:
            self.garbage.end_turn()

    def _produce(self, tab: ConversationTab, pending: QueuedTurn) -> Iterator[Produced]:
        """Run a turn; in the feed's thread."""
        conversation = tab.conversation
        if conversation is None:
            conversation = self._chat.create(title=tab.draft.title, system=tab.draft.system)
            tab.answered = conversation  # first: what is temporary and not being written may be deleted
            if tab.draft.is_temporary:
                self.temporary.add(conversation.session.id)
            yield ConversationOpened(conversation=conversation)
        tab.answered = conversation
        with conversation.stoppable():
            if tab.is_stopping:
                self._chat.stop(conversation)
            if pending.reading is not None:
                pending.reading.hand_over(conversation)
            yield from pending.run(self._chat, conversation)

    async def _draw(self, event: FeedEvent) -> None:
        match event:
            case ConversationOpened(conversation=conversation):
                self.tab.conversation = conversation
                self.tab.draft = Draft()
                self._screen.conversation_changed()
            case TurnStarted():
                await self._draw_start(event)
            case LoadPlanned() if self._answer is not None:
                self._answer.show_loading(event.estimate)
            case PrefillProgress() if self._answer is not None:
                self._answer.show_prefill(event)
            case TurnFinished():
                self._draw_finish(event)
            case TurnFailed(error=error):
                await self._draw_failure(error)
            case Piece():
                self._draw_text([event])
            case TurnEnded():
                self._end(self.tab)
                self._screen.turn_ended()

    async def _draw_start(self, event: TurnStarted) -> None:
        first = event.question or event.answer
        await self._transcript.cut_after(first.parent_id)
        self._answer = await self._transcript.begin_turn(event.question, event.answer)
        here, moved = self.stored.branch.name, self.stored.diverged_from
        if moved is not None:
            self._screen.warn(_OWN_BRANCH.format(one_line(here), one_line(moved)))
        self._screen.conversation_changed()

    def _draw_text(self, deltas: list[Piece]) -> None:
        if self._answer is None:
            return
        reasoning = "".join(delta.text for delta in deltas if delta.reasoning)
        text = "".join(delta.text for delta in deltas if not delta.reasoning)
        if reasoning:
            self._answer.add_reasoning(reasoning)
        if text:
            self._answer.add_text(text)

    def _draw_finish(self, event: TurnFinished) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.finish(event.answer)
        if event.error:
            self._screen.turn_failed(RuntimeError(event.error), "")
        if event.fits_in:
            self._screen.outgrown(event.fits_in)
        for words in event.notices:
            self._screen.warn(words)

    async def _draw_failure(self, error: Exception) -> None:
        """Show what is stored now: a question that the engine refused was taken back."""
        answer, self._answer = self._answer, None
        kept = self.conversation.turns if self.conversation else ()
        stored = next((turn for turn in kept if answer is not None and turn.id == answer.turn.id), None)
        if answer is not None and stored is not None:
            answer.finish(stored)
        elif answer is not None:
            answer.give_up()
        await self._transcript.cut_after(kept[-1].id if kept else None)
        unsent = unsent_message(self.tab, self.tab.events)
        if isinstance(error, ContextOverflow):
            asked = next((one.question for one in self.tab.events if isinstance(one, TurnStarted)), None)
            own_len = len(asked.token_ids or ()) if asked is not None else 0
            text = self.tab.running.text if self.tab.running else ""
            error = ContextOverflow(overflow_text(error, text, own_len))
        self._screen.turn_failed(error, unsent)
        if isinstance(error, PoolExhausted) and error.fits_in:
            self._screen.outgrown(error.fits_in)


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
