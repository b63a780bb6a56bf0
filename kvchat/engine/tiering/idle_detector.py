"""Idle watch: finds conversations idle for so long that they are demoted early."""

from collections.abc import Callable

from kvchat.engine.scheduling.scheduler import Scheduler
from kvchat.engine.sequences.sequence import Sequence

CHECK_INTERVAL_S = 1.0


class IdleDetector:
    """Knows since when a sequence that holds blocks has been idle."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], limit_s: float | None) -> None:
        """Args:
        limit_s: a sequence that is idle for longer is due; None: none ever is.
        """
        self._scheduler = scheduler
        self._clock = clock
        self._limit_s = limit_s
        self._checked_s = clock()

    def due(self) -> tuple[Sequence, ...]:
        """Return the sequences to demote, the least important first. Looks once a second at most."""
        now_s = self._clock()
        if self._limit_s is None or now_s - self._checked_s < min(CHECK_INTERVAL_S, self._limit_s):
            return ()
        self._checked_s = now_s
        idle = self._scheduler.idle_sequences()
        for sequence in idle:
            if sequence.idle_since_s is None:
                sequence.idle_since_s = now_s
        return tuple(sequence for sequence in idle if now_s - (sequence.idle_since_s or 0.0) >= self._limit_s)
