"""Streams whose work is carried out late, in one of the orders that events allow, drawn at random."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import cast

from kvchat.engine.kernels.stream_protocol import Event, Stream, Work


@dataclass(slots=True, eq=False)
class Promise:
    """Work that waits to be carried out. `after`: what has to be done before."""

    streams: "DelayedStreams"
    work: Work
    after: Sequence["Promise"]
    has_run: bool = False

    @property
    def is_done(self) -> bool:
        self.streams.let_time_pass()
        return self.has_run

    @property
    def is_ready(self) -> bool:
        return all(event.has_run for event in self.after)

    def wait(self) -> None:
        while not self.has_run:
            self.streams.carry_out()

    def seconds(self) -> float:
        assert self.has_run
        return 0.001


class DelayedStreams:
    """Computing and each lane carry out their work in order; who comes next is drawn from those who may.

    All of it in the calling thread, so that a seed is one order: some while more is handed in, some no sooner
    than it is waited for.

    Args:
        forgets: begins work of this lane without regard to what it is to come after: the fault that events
            prevent.
        forgets_joins: so does computing with what comes behind a lane's work.
    """

    def __init__(self, seed: int, *, forgets: Stream | None = None, forgets_joins: bool = False) -> None:
        self._forgets = forgets
        self._forgets_joins = forgets_joins
        self._random = Random(seed)
        self._queues = {lane: deque[Promise]() for lane in (None, *Stream)}
        self._last = Promise(self, lambda: None, (), has_run=True)

    def compute(self, work: Work) -> Event:
        self._last = self._put(None, work, ())
        return self._last

    def mark(self) -> Event:
        return self._last

    def beside(self, lane: Stream, work: Work, after: Sequence[Event]) -> Event:
        return self._put(lane, work, () if lane is self._forgets else after)

    def join(self, event: Event) -> None:
        if not self._forgets_joins:
            self._last = self._put(None, lambda: None, (event,))

    def let_time_pass(self) -> None:
        """Carry out as much as happens to be."""
        while self._ready() and self._random.random() < 0.5:
            self.carry_out()

    def carry_out(self) -> None:
        """Carry out one piece of work that may be next.

        Raises:
            Exception: what the work raised.
        """
        queue = self._random.choice(self._ready())
        promise = queue.popleft()
        promise.work()
        promise.has_run = True

    def _ready(self) -> list[deque[Promise]]:
        return [queue for queue in self._queues.values() if queue and queue[0].is_ready]

    def _put(self, lane: Stream | None, work: Work, after: Sequence[Event]) -> Promise:
        promise = Promise(self, work, cast("Sequence[Promise]", after))
        self._queues[lane].append(promise)
        self.let_time_pass()
        return promise
