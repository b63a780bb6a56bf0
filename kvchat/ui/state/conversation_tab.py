"""One conversation that is open in the interface: what runs and waits in it, and what of it is not stored."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvchat.app.turn_thread import FeedEvent, TurnFailed, TurnThread
from kvchat.chat.events import ChatEvent, TurnFinished, TurnStarted
from kvchat.errors import PoolExhausted
from kvchat.session.tree import SessionId, Turn, TurnId

if TYPE_CHECKING:
    from kvchat.chat.candidates.service import ReadAhead
    from kvchat.chat.conversation import Conversation
    from kvchat.chat.service import Chat

State = tuple[SessionId, str, TurnId | None]
"""A branch of a session, and its last message."""

_OUTGROWN = "the cache has no room for it exactly; go there to keep its KV in {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A conversation that is not stored yet: it is made with its first message.

    Args:
        is_temporary: it is to be deleted when it is left.
    """

    title: str = ""
    system: str = ""
    is_temporary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsent:
    """A message that was not sent, and to whom it was to go."""

    conversation: "Conversation | None"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTurn:
    """A turn that waits, and what runs it: in its thread, with the chat as it is by then.

    Args:
        text: the message that it sends; where it has nothing to be shown, `name` is while it waits.
        reading: what was read ahead of the message.
    """

    run: "Callable[[Chat, Conversation], Iterator[ChatEvent]]"
    text: str = ""
    name: str = "message"
    reading: "ReadAhead | None" = None


def message_turn(text: str, reading: "ReadAhead | None" = None) -> QueuedTurn:
    return QueuedTurn(run=lambda chat, here: chat.send(here, text), text=text, reading=reading)


@dataclass(slots=True, eq=False)
class ConversationTab:
    """One conversation, on screen or behind it, with what runs and waits in it.

    Args:
        conversation: None for a draft.
        draft: what a new conversation will be made with.
        events: what the running turn has produced so far, to be drawn again when it comes back on screen.
        answered: the conversation of the running turn, once its thread has it.
        is_stopping: the running turn was asked to stop, maybe before its thread had a conversation.
        ended_s: when the end of the last turn was drawn.
    """

    conversation: "Conversation | None" = None
    draft: Draft = field(default_factory=Draft)
    queue: deque[QueuedTurn] = field(default_factory=deque)
    feed: TurnThread = field(default_factory=TurnThread)
    running: QueuedTurn | None = None
    events: list[FeedEvent] = field(default_factory=list)
    answered: "Conversation | None" = None
    is_stopping: bool = False
    ended_s: float | None = None

    @property
    def is_busy(self) -> bool:
        return self.feed.is_running or bool(self.queue)

    def holds(self, conversation: "Conversation | None") -> bool:
        if self.conversation is None or conversation is None:
            return False
        return branch_key(self.conversation) == branch_key(conversation)


def branch_key(conversation: "Conversation") -> tuple[SessionId, str]:
    """Return the session and the branch of a conversation, which is the same where it is opened anew."""
    return conversation.session.id, conversation.branch.name


def state_of(conversation: "Conversation") -> State:
    last = conversation.turns[-1].id if conversation.turns else None
    return *branch_key(conversation), last


def unseen_words(events: Sequence[FeedEvent]) -> tuple[Sequence[str], tuple[str, ...]]:
    """Return what is to be told of a turn that nobody saw, and the formats in which there is room for it."""
    words: list[str] = []
    fits_in: tuple[str, ...] = ()
    for event in events:
        if isinstance(event, TurnFinished):
            words, fits_in = [*filter(None, [event.error]), *event.notices], event.fits_in
        elif isinstance(event, TurnFailed) and isinstance(event.error, PoolExhausted):
            fits_in = event.error.fits_in
    return [*words, *(_OUTGROWN.format(cache_format) for cache_format in fits_in[:1])], fits_in


def turns_before(tab: ConversationTab) -> Sequence[Turn]:
    """Return the turns that stand above what the running turn has produced."""
    turns = tab.conversation.turns if tab.conversation else ()
    started = next((event for event in tab.events if isinstance(event, TurnStarted)), None)
    if started is None:
        return turns
    parent_id = (started.question or started.answer).parent_id
    ids = [turn.id for turn in turns]
    return turns[: ids.index(parent_id) + 1] if parent_id in ids else ()


def unsent_message(tab: ConversationTab, events: Sequence[FeedEvent]) -> str:
    """Return the message of a turn that failed, where it is not stored."""
    turns = tab.conversation.turns if tab.conversation else ()
    asked = next((event.question for event in events if isinstance(event, TurnStarted)), None)
    is_kept = asked is not None and any(turn.id == asked.id for turn in turns)
    return tab.running.text if tab.running is not None and not is_kept else ""


def message_not_stored(tab: ConversationTab) -> str:
    """Return the message of a turn that is given up, where it is not stored."""
    events = [*tab.events, *tab.feed.waiting()]
    is_started = any(isinstance(event, TurnStarted) for event in events)
    if is_started and not any(isinstance(event, TurnFailed) for event in events):
        return ""
    text = unsent_message(tab, events)
    turns = tab.conversation.turns if tab.conversation else ()
    return "" if turns and turns[-1].text == text else text
