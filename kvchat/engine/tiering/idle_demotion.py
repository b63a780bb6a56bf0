"""Demotion queue: moves blocks of idle sequences to host memory, a piece in each step.

Where no stream copies beside the computation the engine's thread does, and a whole conversation at once would
halt everybody else's answer. Until its turn has come a block stays cached: whoever needs it finds it, and
whoever needs its place takes it, whereupon it moves to host memory as anything does that is evicted.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_operations import Move
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.prefix_index import IndexNode
from kvchat.engine.formats.spec import Group
from kvchat.engine.memory.rates import Rates


class HostAdmission:
    """Weighs a block of all groups together, since one computation brings back all of them."""

    def __init__(self, rates: Rates, groups: Sequence[Group], block_size: int) -> None:
        self._rates = rates
        self._num_bytes = sum(group.block_bytes(block_size) for group in groups if not group.is_state)

    def in_host(self, node: IndexNode) -> bool:
        """Whether loading a block from host memory takes less time than computing it where it stands."""
        load_s = self._rates.seconds_to_load(Tier.HOST, self._num_bytes)
        return load_s < self._rates.seconds_to_compute(len(node.token_ids), node.start)


PIECE_BYTES: Final = 8 << 20
"""What one step moves at most, or one block where that is larger."""


class DemotionQueue:
    """Owned by the engine's thread.

    Args:
        carry_out: executes moves, at once.
    """

    def __init__(self, device: DeviceTier, carry_out: Callable[[Sequence[Move]], None]) -> None:
        self._device = device
        self._carry_out = carry_out
        self._waiting: deque[tuple[GroupId, BlockId, BlockKey]] = deque()

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
            if num_bytes > max(PIECE_BYTES, self._device.block_bytes[group]):
                break
            self._waiting.popleft()
            if self._device.pools[group].key(block) == key:  # else its place was taken meanwhile
                self._device.demote(group, block)
        if num_bytes:
            self._carry_out(self._device.take_demotions())
