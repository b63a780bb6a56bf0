"""Saver: takes named blocks and tails off the device for the block writer, without holding up the engine.

On a device with streams a block is gathered among the computation into a run of its own, so whatever is
computed next may write over it, and the run is copied on a stream beside it. The thread that writes files
waits for the copy; the engine's thread never does. A place in host memory, and the run, are used again once
the block is written or dropped and its copy is done, whichever is later.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

from torch import Tensor

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId
from kvchat.engine.cache.block_operations import Save
from kvchat.engine.kernels.stream_protocol import Event, Streams
from kvchat.engine.memory.aligned_memory import mapped
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.disk.store import BlockHeader, DiskStore
from kvchat.engine.memory.disk.write_queue import BlockCopy, BlockWriteQueue
from kvchat.engine.memory.host_copies import copy_out
from kvchat.engine.memory.pinned import PinnedSlabs, pinned

STEP_BYTES = 8 << 20
"""Taken off the device in one step: behind a long prompt its blocks would hold up the next token. So much is
also enough for a writer that steps aside to have in hand, which takes far less than that in most steps.
"""
MOST_FREE = 4
"""Runs of each group that are kept for the next blocks; what is decoded fills one at a time."""


class DirectCopy:
    """A block's bytes in a run that is used again once they are written."""

    def __init__(self, run: memoryview, free: deque[memoryview]) -> None:
        self._run, self._free = run, free

    def __len__(self) -> int:
        return len(self._run)

    def wait(self) -> memoryview:
        return self._run

    def release(self) -> None:
        self._free.append(self._run)


class SaveTransport:
    """Brings blocks' bytes to host memory in the calling thread: where the device is the processor, or one
    without streams.

    A few runs are used again and again. The system clears the pages of a new one as they are written, which
    takes as long as copying a block.
    """

    def __init__(self, pool: DevicePool) -> None:
        self._pool = pool
        self._free: dict[GroupId, deque[memoryview]] = {}

    def has_room(self, group: GroupId) -> bool:
        """Whether a block can be taken now. Waits for nothing."""
        return True

    def take(self, group: GroupId, block: BlockId, num_tokens: int) -> BlockCopy:
        """Return a block's bytes as they are after all computation handed in so far, slots behind the first
        `num_tokens` zero; they may be on their way.
        """
        free = self._free.setdefault(group, deque(maxlen=MOST_FREE))
        run = free.pop() if free else memoryview(mapped(self._pool.block_bytes(group)))
        self._pool.read_into(group, block, run)
        self._pool.clear_slots(group, run, num_tokens)
        return DirectCopy(run, free)


@dataclass(slots=True, eq=False)
class AsyncCopy:
    """One block's bytes, there once its copy is done.

    Args:
        gathered: what the copy reads; it lives as long as the copy does.
        clear: fills slots without a token with zeros.
    """

    group: GroupId
    data: memoryview
    event: Event
    gathered: list[Tensor]
    clear: Callable[[], None]
    is_released: bool = False

    def __len__(self) -> int:
        return len(self.data)

    def wait(self) -> memoryview:
        """Return the bytes, slots without a token zero. Waits for the copy."""
        self.event.wait()
        self.gathered.clear()
        self.clear()
        return self.data

    def release(self) -> None:
        """Say that nobody reads the bytes any more. In any thread."""
        self.is_released = True


class AsyncSaves(SaveTransport):
    """Takes blocks off the device on streams.

    Args:
        most_bytes: of blocks that are on their way or wait to be written, of each group; one block more is
            taken, since whoever waits for a disk that refuses gives blocks up by taking them.
        allocate: number of bytes → host memory that the device writes by itself.
    """

    def __init__(
        self, pool: DevicePool, streams: Streams, most_bytes: int, allocate: Callable[[int], Tensor] = pinned
    ) -> None:
        super().__init__(pool)
        self._streams = streams
        self._under_way: list[AsyncCopy] = []
        for group in pool.layouts():
            block_bytes = pool.block_bytes(group)
            num_places = max(1, most_bytes // block_bytes) + 1
            slabs = PinnedSlabs(num_places, block_bytes, allocate)
            # All of it now: pinning takes its time, and a step has none.
            self._free[group] = deque(map(slabs.view, range(num_places)))

    def has_room(self, group: GroupId) -> bool:
        over = [taken for taken in self._under_way if taken.is_released and taken.event.is_done]
        for taken in over:
            self._under_way.remove(taken)
            self._free[taken.group].append(taken.data)
        return bool(self._free[group])

    def take(self, group: GroupId, block: BlockId, num_tokens: int) -> AsyncCopy:
        """Begin to copy a block; waits for nothing."""
        data = self._free[group].pop()
        event, gathered = copy_out(self._streams, self._pool.moves(group), [block], [data])
        clear = partial(self._pool.clear_slots, group, data, num_tokens)
        taken = AsyncCopy(group, data, event, gathered, clear)
        self._under_way.append(taken)
        return taken


class Saver:
    """Takes blocks off the device pool and queues them for the writer thread.

    Full blocks whose turn does not come because the queue is full wait here by name and are dropped when they
    are evicted first: they can always be computed again.
    """

    def __init__(
        self,
        pool: DevicePool,
        store: DiskStore,
        writer: BlockWriteQueue,
        is_resident: Callable[[Save], bool],
        transport: SaveTransport | None = None,
        on_save: Callable[[Save], object] = lambda _: None,
    ) -> None:
        """Args:
        is_resident: whether a block still has its name.
        on_save: told of each block that the writer has taken.
        transport: how blocks leave the device; None: in the calling thread.
        """
        self._pool = pool
        self._pool_bytes = pool.num_bytes
        self._transport = transport or SaveTransport(pool)
        self._store = store
        self.writer = writer
        self._is_resident = is_resident
        self._on_save = on_save
        self._waiting: deque[Save] = deque()
        self._steps_aside = False

    @property
    def num_waiting(self) -> int:
        """Blocks that the queue has had no room for yet; they must stay on the device to be saved."""
        return len(self._waiting)

    def save_blocks(self, saves: Iterable[Save], most_bytes: int | None = STEP_BYTES) -> None:
        """Queue full blocks, as many of them as a step has time for; the others wait for `pump`."""
        self._waiting.extend(saves)
        self.pump(most_bytes)

    def step_aside(self, wanted: bool) -> None:
        """Say whether writing, and reading for it, leaves the processor to the engine. While as much waits as
        half of the pool, it is written all the same: blocks that are evicted first are lost.
        """
        waiting_bytes = self.num_waiting and self.num_waiting * self._pool.block_bytes(self._waiting[0].group)
        self._steps_aside = wanted and 2 * waiting_bytes <= self._pool_bytes
        self.writer.step_aside(self._steps_aside)

    def save_missing(self, saves: Sequence[Save]) -> None:
        """Queue those full blocks that the store lacks, and that are not on their way to it."""
        under_way = self.writer.queued() | {
            (save.key, save.group) for save in self._waiting if self._is_resident(save)
        }
        saves = [save for save in saves if (save.key, save.group) not in under_way]
        for group in {save.group for save in saves}:
            of_group = [save for save in saves if save.group == group]
            there = self._store.has_all([save.key for save in of_group], group)
            self._waiting.extend(save for save, flag in zip(of_group, there, strict=True) if not flag)
        self.pump(None)

    def save_tail(self, saves: Sequence[Save]) -> bool:
        """Queue a tail's parts as they are now; False if the queue has no room for all of them."""
        accepted = [self._submit(save) for save in saves]
        return all(accepted)

    def pump(self, most_bytes: int | None = STEP_BYTES) -> None:
        """Hand waiting blocks to the writer as far as its queue has room; to one that steps aside, no more of
        them in a step than it has in hand for the next.

        Args:
            most_bytes: of them, or one block; None: any number, since no step waits.
        """
        num_bytes = 0
        while self._waiting and (most_bytes is None or num_bytes < most_bytes):
            if self._steps_aside and most_bytes is not None and self.writer.queued_bytes >= STEP_BYTES:
                return
            save = self._waiting[0]
            if self._is_resident(save):
                if not self._submit(save):
                    return
                num_bytes += self._pool.block_bytes(save.group)
            self._waiting.popleft()

    def flush(self, timeout_s: float) -> bool:
        """Write everything that is still resident; False if a queue of it took longer than `timeout_s`."""
        done = True
        while self._waiting and done:
            self.pump(None)
            done = self.writer.flush(timeout_s)
            num_waiting = len(self._waiting)
            self.pump(None)
            if done and self._waiting and len(self._waiting) == num_waiting:
                return False  # all that was taken is written, and yet there is no room
        return self.writer.flush(timeout_s) and done

    def give_up(self, keys: Collection[BlockKey] | None = None) -> None:
        """Drop what waits to be written: these blocks, or all."""
        self._waiting = deque(save for save in self._waiting if keys is not None and save.key not in keys)
        self.writer.drop(keys)

    def drain(self, timeout_s: float) -> None:
        """Wait until nothing is on its way to the disk; what it does not take in time is dropped.

        Where something is being written when time is up, that is waited for once more as long.
        """
        until_s = monotonic() + timeout_s
        while self._waiting and monotonic() < until_s:
            self.pump(None)
            if not self.writer.flush(max(0.0, until_s - monotonic())):
                break
        if self._waiting or not self.writer.flush(max(0.0, until_s - monotonic())):
            self.give_up()
            self.writer.rest(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Do as `flush`, then end the writer."""
        self.flush(timeout_s)
        self.writer.close()

    def _submit(self, save: Save) -> bool:
        # Asked first: reading a block for a queue that has no room for it would cost every step a copy.
        block_bytes = self._pool.block_bytes(save.group)
        if not self.writer.has_room(block_bytes) or not self._transport.has_room(save.group):
            return False
        header = BlockHeader(key=save.key, parent=save.parent, group=save.group, token_ids=save.token_ids)
        payload = self._transport.take(save.group, save.block, len(save.token_ids))
        is_taken = self.writer.submit(header, payload, replaces=save.replaces)
        if is_taken:
            self._on_save(save)
        return is_taken
