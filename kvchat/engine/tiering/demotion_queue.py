"""Blocks of sequences that nobody uses, on their way to host memory: a piece in each step.

Where no stream copies beside the computation the engine's thread does, and a whole conversation at once would
halt everybody else's answer. Until its turn has come a block stays cached: whoever needs it finds it, and
whoever needs its place takes it, whereupon it moves to host memory as anything does that is evicted.
"""

from collections import abc, deque
from collections.abc import Callable, Iterable
from typing import Final

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.plan import Move
from kvchat.engine.scheduling.scheduler import Scheduler
from kvchat.engine.sequences.sequence import Sequence

PIECE_BYTES: Final = 8 << 20
"""What one step moves at most, or one block where that is larger."""


class DemotionQueue:
    """Owned by the engine's thread.

    Args:
        carry_out: executes moves, at once.
    """

    def __init__(
        self,
        device: DeviceTier,
        carry_out: Callable[[abc.Sequence[Move]], None],
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._device = device
        self._carry_out = carry_out
        self._piece_bytes = piece_bytes
        self._waiting: deque[tuple[GroupId, BlockId, BlockKey]] = deque()

    @property
    def num_waiting(self) -> int:
        """Blocks whose turn has not come."""
        return len(self._waiting)

    def add(self, blocks: Iterable[tuple[GroupId, BlockId]]) -> None:
        """Let cached blocks leave, in this order; those without a name are nothing to keep."""
        for group, block in blocks:
            key = self._device.pools[group].key(block)
            if key is not None:
                self._waiting.append((group, block, key))

    def advance(self) -> None:
        """Move the next piece, as far as host memory takes it."""
        num_bytes = 0
        while self._waiting:
            group, block, key = self._waiting[0]
            num_bytes += self._device.block_bytes[group]
            if num_bytes > max(self._piece_bytes, self._device.block_bytes[group]):
                break
            self._waiting.popleft()
            if self._device.pools[group].key(block) == key:  # else its place was taken meanwhile
                self._device.demote(group, block)
        if num_bytes:
            self._carry_out(self._device.take_demotions())


CHECK_INTERVAL_S = 1.0


class IdleWatch:
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
