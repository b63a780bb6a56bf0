"""Events on their way to whoever waits for an answer, from the thread that hears of them."""

from collections import deque
from collections.abc import Callable
from threading import Condition

from kvchat.engine.api.events import Event
from kvchat.errors import KvchatError


class EventQueue:
    """The events of one request.

    Args:
        failure: says why no event will come any more; None while some may.
    """

    def __init__(self, failure: Callable[[], KvchatError | None]) -> None:
        self._failure = failure
        self._events: deque[Event] = deque()
        self._changed = Condition()

    def take_events(self, timeout_s: float) -> tuple[Event, ...]:
        """Return the events since the last call; wait up to `timeout_s` for the first.

        Raises:
            EngineFailed: none will come any more, and none is left.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._failure() is not None, timeout_s)
            events = tuple(self._events)
            self._events.clear()
        if not events and (failure := self._failure()) is not None:
            raise failure
        return events

    def push(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let whoever waits look at `failure` again."""
        with self._changed:
            self._changed.notify_all()
