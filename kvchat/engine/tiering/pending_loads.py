"""Pending loads: what is held for requests that wait for stored blocks, until they are admitted."""

from collections.abc import Iterator
from dataclasses import field

from kvchat.engine.api.events import LoadEstimate
from kvchat.engine.api.ids import BlockKey, RequestId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.sequences.completion import Completion
from kvchat.engine.tiering.in_flight_loads import InFlightLoad, InFlightLoads
from kvchat.platform.values import dataclass


@dataclass(slots=True, eq=False)
class PendingLoad:
    """One request's way to its stored blocks, until it is admitted with them.

    Args:
        counts: whether the request tells what it finds now as what it has reused.
    """

    entry: Completion
    counts: bool
    flight: InFlightLoad | None = None
    blocked_by: InFlightLoad | None = None
    """Another flight that brings blocks which this one needs."""
    estimate: LoadEstimate | None = None
    start_len: int = 0
    """Tokens that were on the device when it was weighed."""
    fetched: dict[BlockKey, Tier] = field(default_factory=dict)
    """Where the blocks came from that were brought for it."""
    present_len: int | None = None
    """Tokens that were on the device when computing began beside the flight; None: it did not."""
    front_len: int = 0
    """Tokens computed beside the flight."""

    @property
    def is_landing(self) -> bool:
        return self.flight is not None and not self.flight.is_over


class PendingLoads:
    """The resumptions of all requests. Owned by the engine's thread."""

    def __init__(self, flights: InFlightLoads) -> None:
        self._flights = flights
        self._resumptions: dict[RequestId, PendingLoad] = {}

    def __iter__(self) -> Iterator[PendingLoad]:
        return iter(tuple(self._resumptions.values()))

    def of(self, entry: Completion) -> PendingLoad | None:
        """Return what is known of a request; None if it waits for nothing. Pure."""
        return self._resumptions.get(entry.id)

    def keep(self, resumption: PendingLoad) -> None:
        """Remember a resumption; it takes the place of an earlier one of the same request."""
        self._resumptions[resumption.entry.id] = resumption

    def forget(self, resumption: PendingLoad) -> None:
        """Let go of what is held for a request, and let it compute wherever it likes."""
        resumption.entry.limit = None
        self._resumptions.pop(resumption.entry.id, None)
        if resumption.flight is not None:
            self._flights.leave(resumption.flight)

    def let_go(self, entry: Completion) -> bool:
        """Give up blocks that are held for less important requests, the least important first.

        Returns:
            False if that gives no block back now.
        """
        self._flights.leave_promotions()
        for resumption in sorted(self, key=lambda each: each.entry.rank, reverse=True):
            flight = resumption.flight
            if resumption.entry.rank <= entry.rank:
                return False
            if flight is not None and not flight.has_ended:
                self.forget(resumption)
                if flight.has_ended:
                    return True
        return False
