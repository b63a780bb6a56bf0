"""Prefetcher: loads the path of the session that a person is about to continue.

One at a time, in room that nobody holds, and behind everything that a request waits for. What has arrived
stays cached when the request changes.
"""

from dataclasses import dataclass

from kvchat.engine.api.ids import BlockKey, SequenceId, chain_keys
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.sequences.sequence import Sequence
from kvchat.engine.tiering.in_flight_loads import InFlightLoad, InFlightLoads


@dataclass(frozen=True, slots=True)
class PrefetchRequest:
    """Token ids to have on the device, and those whose blocks must not make room for them."""

    token_ids: tuple[int, ...]
    beside: tuple[int, ...]
    root: BlockKey


class Prefetcher:
    def __init__(self, manager: CacheManager, loads: InFlightLoads) -> None:
        self._manager = manager
        self._loads = loads
        self._request: PrefetchRequest | None = None
        self._flight: InFlightLoad | None = None

    @property
    def is_due(self) -> bool:
        """Whether there is something to begin."""
        return self._request is not None

    def want(self, request: PrefetchRequest) -> None:
        """Begin with another path as soon as nothing else is on its way."""
        self.stop()
        self._request = request

    def stop(self) -> None:
        """Give up the present request; what has arrived stays cached."""
        self._request = None
        if self._flight is not None:
            self._loads.leave(self._flight)
            self._flight = None

    def advance(self) -> None:
        """End what has arrived, begin what is wanted. Never waits."""
        if self._flight is not None and self._flight.is_over:
            self._loads.leave(self._flight)
            self._flight = None
        if self._request is not None and not self._loads.is_busy:
            request, self._request = self._request, None
            self._flight = self._begin(request)

    def _begin(self, request: PrefetchRequest) -> InFlightLoad | None:
        """Bring the path, or as much of its beginning as there is room for."""
        sequence = Sequence(SequenceId(0), "", request.root, list(request.token_ids), [])
        spared = chain_keys(request.root, request.beside, self._manager.block_size)
        max_len: int | None = None
        while max_len != 0:
            match = self._manager.match(sequence, max_len)
            if not self._loads.transfers.missing_bytes(match, request.root):
                return None
            load = self._loads.begin(match, request.root, spared=spared, is_urgent=False)
            if load is not None:
                return load
            size = self._manager.block_size
            max_len = match.length // 2 // size * size
        return None
