"""A request's handle where caller and engine share a thread: iterating it steps the engine."""

from collections import deque
from collections.abc import Callable, Iterator

from kvchat.engine.api.events import Event, RequestFinished
from kvchat.engine.api.ids import RequestId, SequenceId


class Handle:
    """Iterate to receive the request's events; the last one is RequestFinished."""

    def __init__(
        self,
        request_id: RequestId,
        sequence: SequenceId,
        step: Callable[[], object],
        cancel: Callable[[RequestId], None],
    ) -> None:
        self.request_id = request_id
        self.sequence = sequence
        self.result: RequestFinished | None = None
        self._step = step
        self._cancel = cancel
        self._events: deque[Event] = deque()

    def push(self, event: Event) -> None:
        """Take an event; the last one tells which sequence holds the answer."""
        self._events.append(event)
        if isinstance(event, RequestFinished):
            self.result = event
            self.sequence = event.sequence

    def cancel(self) -> None:
        """Ask for the end of the request; takes effect with the next step."""
        self._cancel(self.request_id)

    def __iter__(self) -> Iterator[Event]:
        while self._events or self.result is None:
            while self._events:
                yield self._events.popleft()
            if self.result is None:
                self._step()
