"""Work beside the engine's computation: lanes that carry out their work in order, bound to it by events.

Handing work in never waits for it. On a processor there is nothing beside the calling thread, and no lane is
made; a GPU has streams.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

Work = Callable[[], None]


class Stream(Enum):
    """What is carried out in order, beside the other lane and beside computation."""

    OUT = auto()
    """From the device to host memory."""
    IN = auto()
    """From host memory to the device."""


class Event(Protocol):
    """Stands for work that was handed in."""

    @property
    def is_done(self) -> bool: ...

    def wait(self) -> None:
        """Wait in the calling thread until the work is done."""
        ...

    def seconds(self) -> float:
        """Return how long the work took; it is done."""
        ...


class Streams(Protocol):
    """Where work goes."""

    def compute(self, work: Work) -> Event:
        """Hand in work of the engine's thread, in order with everything that it computes."""
        ...

    def mark(self) -> Event:
        """Return what is done when all computation handed in so far is. In any thread."""
        ...

    def beside(self, lane: Stream, work: Work, after: Sequence[Event]) -> Event:
        """Hand in work for a lane that begins when all of `after` is done. In any thread."""
        ...

    def join(self, event: Event) -> None:
        """Let what is computed from here on begin when the work is done. The calling thread does not wait."""
        ...


@dataclass(frozen=True, slots=True)
class Done:
    """Work that is over."""

    @property
    def is_done(self) -> bool:
        return True

    def wait(self) -> None: ...

    def seconds(self) -> float:
        return 0.001


class InlineStreams:
    """Carries out what moves on streams where there are none."""

    def compute(self, work: Work) -> Event:
        work()
        return Done()

    def mark(self) -> Event:
        return Done()

    def beside(self, lane: Stream, work: Work, after: Sequence[Event]) -> Event:
        assert all(event.is_done for event in after)
        work()
        return Done()

    def join(self, event: Event) -> None:
        assert event.is_done
