"""Idle demotion: moves conversations that were left alone for long to host memory, a piece in each step.

Where no stream copies beside the computation the engine's thread does, and a whole conversation at once would
halt everybody else's answer. Until its turn has come a block stays cached: whoever needs it finds it, and
whoever needs its place takes it, whereupon it moves to host memory as anything does that is evicted.
"""

from collections import abc, deque
from collections.abc import Callable
from typing import Final

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_operations import Move
from kvchat.engine.cache.prefix_index import IndexNode
from kvchat.engine.formats.spec import Group
from kvchat.engine.memory.rates import Rates
from kvchat.engine.scheduling.scheduler import Scheduler
from kvchat.engine.sequences.sequence import Sequence
from kvchat.engine.tiering.save_policy import SavePolicy


class HostAdmission:
    """Weighs a block of all groups together, since one computation brings back all of them."""

    def __init__(self, rates: Rates, groups: abc.Sequence[Group], block_size: int) -> None:
        self._rates = rates
        self._num_bytes = sum(group.block_bytes(block_size) for group in groups if not group.is_state)

    def in_host(self, node: IndexNode) -> bool:
        """Whether loading a block from host memory takes less time than computing it where it stands."""
        load_s = self._rates.seconds_to_load(Tier.HOST, self._num_bytes)
        return load_s < self._rates.seconds_to_compute(len(node.token_ids), node.start)


CHECK_INTERVAL_S: Final = 1.0
PIECE_BYTES: Final = 8 << 20
"""What one step moves at most, or one block where that is larger."""


class IdleDemotion:
    """Owned by the engine's thread.

    Args:
        limit_s: a sequence that holds blocks and is idle for longer is due; None: none ever is.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        save_policy: SavePolicy,
        clock: Callable[[], float],
        limit_s: float | None,
        carry_out: Callable[[abc.Sequence[Move]], None],
    ) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.manager
        self._save_policy = save_policy
        self._clock = clock
        self._limit_s = limit_s
        self._carry_out = carry_out
        self._checked_s = clock()
        self._leaving: deque[tuple[GroupId, BlockId, BlockKey]] = deque()

    def advance(self) -> None:
        """Let go of sequences that are due, unless the disk still reads blocks, and move the next piece, as
        far as host memory takes it.
        """
        if not self._save_policy.is_behind:
            for sequence in self._due():
                if self._save_policy.save_leaving(sequence):
                    self._let_go(sequence)
        num_bytes, device = 0, self._manager.device
        while self._leaving:
            group, block, key = self._leaving[0]
            num_bytes += device.block_bytes[group]
            if num_bytes > max(PIECE_BYTES, device.block_bytes[group]):
                break
            self._leaving.popleft()
            if device.pools[group].key(block) == key:  # else its place was taken meanwhile
                device.demote(group, block)
        if num_bytes:
            self._carry_out(device.take_demotions())

    def _due(self) -> tuple[Sequence, ...]:
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

    def _let_go(self, sequence: Sequence) -> None:
        """Have a sequence's blocks leave; those without a name are nothing to keep."""
        for group, block in self._manager.leave(sequence):
            key = self._manager.pools[group].key(block)
            if key is not None:
                self._leaving.append((group, block, key))
