"""Loading ahead of use: the path of the session that a person is about to go on with.

One at a time, in room that nobody holds, and behind everything that a request waits for. What has arrived
stays cached when the wish changes.
"""

from kvchat.engine.api.ids import BlockKey, SequenceId, chain_keys
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.sequences.sequence import Sequence
from kvchat.engine.tiering.in_flight_loads import InFlightLoad, InFlightLoads
from kvchat.platform.values import dataclass


@dataclass(frozen=True, slots=True)
class PrefetchRequest:
    """Token ids to have on the device, and those whose blocks must not make room for them."""

    token_ids: tuple[int, ...]
    beside: tuple[int, ...]
    root: BlockKey


class Prefetcher:
    def __init__(self, manager: CacheManager, flights: InFlightLoads) -> None:
        self._manager = manager
        self._flights = flights
        self._wish: PrefetchRequest | None = None
        self._flight: InFlightLoad | None = None

    @property
    def is_due(self) -> bool:
        """Whether there is something to begin."""
        return self._wish is not None

    def want(self, wish: PrefetchRequest) -> None:
        """Begin with another path as soon as nothing else is on its way."""
        self.stop()
        self._wish = wish

    def stop(self) -> None:
        """Give up the present wish; what has arrived stays cached."""
        self._wish = None
        if self._flight is not None:
            self._flights.leave(self._flight)
            self._flight = None

    def advance(self) -> None:
        """End what has arrived, begin what is wanted. Never waits."""
        if self._flight is not None and self._flight.is_over:
            self._flights.leave(self._flight)
            self._flight = None
        if self._wish is not None and not self._flights.is_busy:
            wish, self._wish = self._wish, None
            self._flight = self._begin(wish)

    def _begin(self, wish: PrefetchRequest) -> InFlightLoad | None:
        """Bring the path, or as much of its beginning as there is room for."""
        sequence = Sequence(SequenceId(0), "", wish.root, list(wish.token_ids), [])
        spared = chain_keys(wish.root, wish.beside, self._manager.block_size)
        max_len: int | None = None
        while max_len != 0:
            match = self._manager.match(sequence, max_len)
            if not match.host_len + match.disk_len:
                return None
            flight = self._flights.begin(match, wish.root, spared=spared, is_urgent=False)
            if flight is not None:
                return flight
            size = self._manager.block_size
            max_len = match.length // 2 // size * size
        return None
