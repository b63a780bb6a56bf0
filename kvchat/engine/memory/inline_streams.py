"""Streams of a processor: work is done at once, in the order in which it is handed in."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.engine.kernels.streams import Event, Stream, Work


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
