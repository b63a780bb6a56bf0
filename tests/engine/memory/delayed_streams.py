"""Streams that are threads: work is carried out in order, and late."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from random import Random
from threading import Event as Flag
from threading import Thread
from time import sleep

from kvchat.engine.memory.streams import Event, Lane, Work

MOST_S = 0.0005


@dataclass(slots=True)
class Promise:
    """Work that a thread is going to do. `error`: what it raised."""

    done: Flag = field(default_factory=Flag)
    error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.done.is_set()

    def wait(self) -> None:
        assert self.done.wait(20)
        if self.error is not None:
            raise self.error

    def seconds(self) -> float:
        assert self.is_done
        return 0.001


Item = tuple[Work, Sequence[Event], Promise]


class DelayedStreams:
    """A thread computes, and one for each lane; each sleeps before it does anything.

    Args:
        forgets: begins work of this lane without regard to what it is to come after: the fault that events
            prevent.
        forgets_joins: so does computing with what comes behind a lane's work.
    """

    def __init__(self, seed: int, *, forgets: Lane | None = None, forgets_joins: bool = False) -> None:
        self._forgets = forgets
        self._forgets_joins = forgets_joins
        self._queues: dict[Lane | None, SimpleQueue[Item | None]] = {}
        self._threads = []
        self._last = Promise()
        self._last.done.set()
        for lane in (None, *Lane):
            self._queues[lane] = SimpleQueue()
            self._threads.append(
                Thread(target=self._run, args=(self._queues[lane], Random(f"{seed} {lane}")))
            )
        for thread in self._threads:
            thread.start()

    def compute(self, work: Work) -> Event:
        self._last = self._put(None, work, ())
        return self._last

    def mark(self) -> Event:
        return self._last

    def beside(self, lane: Lane, work: Work, after: Sequence[Event]) -> Event:
        return self._put(lane, work, () if lane is self._forgets else after)

    def join(self, event: Event) -> None:
        if not self._forgets_joins:
            self._last = self._put(None, lambda: None, (event,))

    def close(self) -> None:
        for queue in self._queues.values():
            queue.put(None)
        for thread in self._threads:
            thread.join()

    def _put(self, lane: Lane | None, work: Work, after: Sequence[Event]) -> Promise:
        promise = Promise()
        self._queues[lane].put((work, after, promise))
        return promise

    def _run(self, queue: "SimpleQueue[Item | None]", random: Random) -> None:
        while (item := queue.get()) is not None:
            work, after, promise = item
            try:
                for event in after:
                    event.wait()
                sleep(random.random() * MOST_S)
                work()
            except BaseException as error:
                promise.error = error
            promise.done.set()
