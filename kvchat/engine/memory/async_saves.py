"""Blocks on their way from the device to the disk, copied to host memory while the model goes on.

A block is gathered among the computation into a run of its own, so whatever is computed next may write over
it, and the run is copied on a lane beside it. The thread that writes files waits for the copy; the engine's
thread never does. A place in host memory, and the run, are used again once the block is written or given up
and its copy is done, whichever is later.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.kernels.streams import Event, Stream, Streams
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.pinned import PinnedSlabs, pinned


@dataclass(slots=True, eq=False)
class TakenBlocks:
    """One block's bytes, there once its copy is done.

    Args:
        gathered: what the copy reads; it lives as long as the copy does.
        place: where in host memory the bytes are.
    """

    group: GroupId
    place: int
    num_tokens: int
    data: memoryview
    event: Event
    gathered: list[Tensor]
    clear: Callable[[memoryview, int], None]
    is_released: bool = field(default=False)

    def __len__(self) -> int:
        return len(self.data)

    def arrived(self) -> memoryview:
        """Return the bytes, slots without a token zero. Waits for the copy."""
        self.event.wait()
        self.gathered.clear()
        self.clear(self.data, self.num_tokens)
        return self.data

    def release(self) -> None:
        """Say that nobody reads the bytes any more. In any thread."""
        self.is_released = True


class AsyncSaves:
    """Takes blocks off the device on streams.

    Args:
        most_bytes: of blocks that are on their way or wait to be written, of each group; one block more is
            taken, since whoever waits for a disk that refuses gives blocks up by taking them.
        allocate: number of bytes → host memory that the device writes by itself.
    """

    def __init__(
        self,
        pool: DevicePool,
        streams: Streams,
        most_bytes: int,
        allocate: Callable[[int], Tensor] = pinned,
    ) -> None:
        self._pool = pool
        self._streams = streams
        self._under_way: list[TakenBlocks] = []
        self._slabs: dict[GroupId, PinnedSlabs] = {}
        self._free: dict[GroupId, list[int]] = {}
        for group in pool.layouts():
            block_bytes = pool.block_bytes(group)
            num_places = max(1, most_bytes // block_bytes) + 1
            self._slabs[group] = PinnedSlabs(num_places, block_bytes, allocate)
            self._free[group] = list(range(num_places))
            for place in range(num_places):
                self._slabs[group].view(place)  # now: pinning takes its time, and a step has none

    def has_room(self, group: GroupId) -> bool:
        """Whether a block can be taken now. Waits for nothing."""
        over = [taken for taken in self._under_way if taken.is_released and taken.event.is_done]
        for taken in over:
            self._under_way.remove(taken)
            self._free[taken.group].append(taken.place)
        return bool(self._free[group])

    def take(self, group: GroupId, block: BlockId, num_tokens: int) -> TakenBlocks:
        """Begin to copy a block as it is after all computation handed in so far; waits for nothing.

        Args:
            num_tokens: slots behind so many are zero in what arrives.
        """
        place = self._free[group].pop()
        data = self._slabs[group].view(place)
        target = torch.frombuffer(data, dtype=torch.uint8)
        gathered: list[Tensor] = []

        def gather() -> None:
            gathered.append(self._pool.moves(group).gather([block])[0])

        def copy() -> None:
            target.copy_(gathered[0], non_blocking=True)

        event = self._streams.beside(Stream.OUT, copy, [self._streams.compute(gather)])

        def clear(run: memoryview, num_kept: int) -> None:
            self._pool.clear_slots(group, run, num_kept)

        taken = TakenBlocks(group, place, num_tokens, data, event, gathered, clear)
        self._under_way.append(taken)
        return taken
