"""Turns run in threads of their own, with their events on the way to the screen.

The producer appends to a deque and the screen drains it thirty times a second: that costs the producer
microseconds per token, a call into the event loop would cost a millisecond. It calls only where something new
begins, such as the first word.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING

from kvchat.chat.events import ChatEvent, SampleDelta, SamplesFinished

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationOpened:
    """The turn's first message made a conversation."""

    conversation: "Conversation"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFailed:
    """The turn ended with an exception."""

    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """The producer is gone; nothing follows."""


Produced = ChatEvent | ConversationOpened | SampleDelta | SamplesFinished
FeedEvent = Produced | TurnFailed | TurnEnded


class TurnThread:
    """One turn that runs in a thread of its own and is read from the event loop.

    The thread is a daemon: an engine that never answers must not keep the process alive. Chat stores every
    token before it yields it, so nothing is lost with the thread.

    Attributes:
        took_s: what the last turn took.
    """

    def __init__(self) -> None:
        self._events: deque[FeedEvent] = deque()
        self._thread: Thread | None = None
        self.took_s = 0.0

    @property
    def is_running(self) -> bool:
        """Whether events of a turn are still to come or to be taken."""
        return self._thread is not None

    @property
    def is_writing(self) -> bool:
        """Whether the turn's thread still runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, produce: Callable[[], Iterable[Produced]], wake: Callable[[], None]) -> None:
        """Run `produce` to its end in a thread.

        Args:
            wake: called in that thread when an event of another sort than the one before can be taken.
        """
        assert self._thread is None, "one turn at a time"
        self._thread = Thread(target=self._run, args=(produce, wake), name="kvchat-turn", daemon=True)
        self._thread.start()

    def take(self) -> list[FeedEvent]:
        """Return what came since the last call, oldest first; never blocks."""
        taken: list[FeedEvent] = []
        while self._events:
            taken.append(self._events.popleft())
        if taken and isinstance(taken[-1], TurnEnded):
            self._thread = None
        return taken

    def waiting(self) -> Sequence[FeedEvent]:
        """Return what can be taken, and leave it there."""
        return self._events.copy()

    def join(self, timeout_s: float) -> None:
        """Wait for the producer to end."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, produce: Callable[[], Iterable[Produced]], wake: Callable[[], None]) -> None:
        sort: type | None = None
        began_s = monotonic()
        try:
            for event in produce():
                self._events.append(event)
                if type(event) is not sort:
                    sort = type(event)
                    wake()
        except Exception as error:
            self._events.append(TurnFailed(error=error))
        self.took_s = monotonic() - began_s
        self._events.append(TurnEnded())
        wake()
