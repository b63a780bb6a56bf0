"""Pending loads: what is held for requests that wait for stored blocks, until they are admitted."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvchat.engine.api.events import LoadEstimate
from kvchat.engine.api.ids import BlockKey, RequestId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.sequences.completion_sequence import Completion
from kvchat.engine.tiering.in_flight_loads import InFlightLoad, InFlightLoads


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """One request's way to its stored blocks, until it is admitted with them.

    Args:
        counts: whether the request tells what it finds now as what it has reused.
    """

    completion: Completion
    counts: bool
    load: InFlightLoad | None = None
    blocked_by: InFlightLoad | None = None
    """Another load that brings blocks which this one needs."""
    estimate: LoadEstimate | None = None
    start_len: int = 0
    """Tokens that were on the device when it was weighed."""
    fetched: dict[BlockKey, Tier] = field(default_factory=dict)
    """Where the blocks came from that were brought for it."""
    present_len: int | None = None
    """Tokens that were on the device when computing began beside the load; None: it did not."""
    front_len: int = 0
    """Tokens computed beside the load."""

    @property
    def is_landing(self) -> bool:
        return self.load is not None and not self.load.is_over


class WaitingRequests:
    """The pending_loads of all requests. Owned by the engine's thread."""

    def __init__(self, loads: InFlightLoads) -> None:
        self._loads = loads
        self._pending_loads: dict[RequestId, WaitingRequest] = {}

    def __iter__(self) -> Iterator[WaitingRequest]:
        return iter(tuple(self._pending_loads.values()))

    def of(self, completion: Completion) -> WaitingRequest | None:
        """Return what is known of a request; None if it waits for nothing. Pure."""
        return self._pending_loads.get(completion.id)

    def keep(self, pending: WaitingRequest) -> None:
        """Remember a pending load; it takes the place of an earlier one of the same request."""
        self._pending_loads[pending.completion.id] = pending

    def forget(self, pending: WaitingRequest) -> None:
        """Let go of what is held for a request, and let it compute wherever it likes."""
        pending.completion.limit = None
        self._pending_loads.pop(pending.completion.id, None)
        if pending.load is not None:
            self._loads.leave(pending.load)

    def let_go(self, completion: Completion) -> bool:
        """Give up blocks that are held for less important requests, the least important first.

        Returns:
            False if that gives no block back now.
        """
        self._loads.leave_promotions()
        for pending in sorted(self, key=lambda each: each.completion.rank, reverse=True):
            load = pending.load
            if pending.completion.rank <= completion.rank:
                return False
            if load is not None and not load.has_ended:
                self.forget(pending)
                if load.has_ended:
                    return True
        return False
