"""Prefetcher: loads the path of the session that a person is about to continue.

One at a time, in room that nobody holds, and behind everything that a request waits for. What has arrived
stays cached when the request changes.
"""

from collections import abc

from kvchat.engine.api.ids import BlockKey, SequenceId, chain_keys
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.sequences.sequence import Sequence
from kvchat.engine.tiering.in_flight_loads import InFlightLoad, InFlightLoads


class Prefetcher:
    def __init__(self, manager: CacheManager, loads: InFlightLoads) -> None:
        self._manager = manager
        self._loads = loads
        self._wanted: Sequence | None = None
        self._spared: list[BlockKey] = []
        self._flight: InFlightLoad | None = None

    @property
    def is_due(self) -> bool:
        """Whether there is something to begin."""
        return self._wanted is not None

    def want(self, token_ids: abc.Sequence[int], beside: abc.Sequence[int], root: BlockKey) -> None:
        """Begin with another path as soon as nothing else is on its way.

        Args:
            beside: path whose blocks must not make room for it.
        """
        self.stop()
        self._wanted = Sequence(SequenceId(0), "", root, list(token_ids), [])
        self._spared = chain_keys(root, beside, self._manager.block_size)

    def stop(self) -> None:
        """Give up the present request; what has arrived stays cached."""
        self._wanted = None
        if self._flight is not None:
            self._loads.leave(self._flight)
            self._flight = None

    def advance(self) -> None:
        """End what has arrived, begin what is wanted. Never waits."""
        if self._flight is not None and self._flight.is_over:
            self._loads.leave(self._flight)
            self._flight = None
        if self._wanted is not None and not self._loads.is_busy:
            wanted, self._wanted = self._wanted, None
            self._flight = self._begin(wanted)

    def _begin(self, sequence: Sequence) -> InFlightLoad | None:
        """Bring the path, or as much of its beginning as there is room for."""
        max_len: int | None = None
        while max_len != 0:
            match = self._manager.match(sequence, max_len)
            if not self._loads.missing_bytes(match, sequence.root):
                return None
            load = self._loads.begin(match, sequence.root, spared=self._spared, is_urgent=False)
            if load is not None:
                return load
            size = self._manager.block_size
            max_len = match.length // 2 // size * size
        return None
