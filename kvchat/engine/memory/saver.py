"""Brings named blocks and tails to the disk store without holding up the engine."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic

from kvchat.engine.api.ids import BlockKey
from kvchat.engine.cache.plan import Save
from kvchat.engine.memory.block_writer import BlockWriter
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.disk_store import BlockHeader, DiskStore


class Saver:
    """Reads blocks out of the device pool and queues them for the writer thread.

    Full blocks whose turn does not come because the queue is full wait here by name and are dropped when they
    are evicted first: they can always be computed again.
    """

    def __init__(
        self, pool: DevicePool, store: DiskStore, writer: BlockWriter, is_resident: Callable[[Save], bool]
    ) -> None:
        self._pool = pool
        self._store = store
        self._writer = writer
        self._is_resident = is_resident
        self._waiting: deque[Save] = deque()

    @property
    def problem(self) -> str | None:
        """Why the last write failed (disk full, read-only), None when all is well."""
        return self._writer.problem

    @property
    def written_bytes(self) -> int:
        """Bytes of blocks that are durable since this saver began."""
        return self._writer.written_bytes

    @property
    def num_waiting(self) -> int:
        """Blocks that the queue has had no room for yet; they must stay on the device to be saved."""
        return len(self._waiting)

    def save_blocks(self, saves: Iterable[Save]) -> None:
        """Queue full blocks."""
        self._waiting.extend(saves)
        self.pump()

    def save_missing(self, saves: Sequence[Save]) -> None:
        """Queue those full blocks that the store lacks."""
        for group in {save.group for save in saves}:
            of_group = [save for save in saves if save.group == group]
            there = self._store.has_all([save.key for save in of_group], group)
            self._waiting.extend(save for save, flag in zip(of_group, there, strict=True) if not flag)
        self.pump()

    def save_tail(self, saves: Sequence[Save]) -> bool:
        """Queue a tail's parts as they are now; False if the queue has no room for all of them."""
        accepted = [self._submit(save) for save in saves]
        return all(accepted)

    def pump(self) -> None:
        """Hand waiting blocks to the writer as far as its queue has room."""
        while self._waiting:
            save = self._waiting[0]
            if self._is_resident(save) and not self._submit(save):
                return
            self._waiting.popleft()

    def flush(self, timeout_s: float) -> bool:
        """Write everything that is still resident; False if a queue of it took longer than `timeout_s`."""
        done = True
        while self._waiting and done:
            self.pump()
            done = self._writer.flush(timeout_s)
        return self._writer.flush(timeout_s) and done

    def give_up(self, keys: Collection[BlockKey] | None = None) -> None:
        """Drop what waits to be written: these blocks, or all."""
        self._waiting = deque(save for save in self._waiting if keys is not None and save.key not in keys)
        self._writer.drop(keys)

    def drain(self, timeout_s: float) -> None:
        """Wait until nothing is on its way to the disk; what it does not take in time is dropped.

        Where something is being written when time is up, that is waited for once more as long.
        """
        until_s = monotonic() + timeout_s
        while self._waiting and monotonic() < until_s:
            self.pump()
            if not self._writer.flush(max(0.0, until_s - monotonic())):
                break
        if self._waiting or not self._writer.flush(max(0.0, until_s - monotonic())):
            self.give_up()
            self._writer.rest(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Do as `flush`, then end the writer."""
        done = self.flush(timeout_s)
        self._writer.close()
        return done

    def _submit(self, save: Save) -> bool:
        # Asked first: reading a block for a queue that has no room for it would cost every step a copy.
        if not self._writer.has_room(self._pool.block_bytes(save.group)):
            return False
        header = BlockHeader(key=save.key, parent=save.parent, group=save.group, token_ids=save.token_ids)
        payload = self._pool.read_block(save.group, save.block, len(save.token_ids))
        return self._writer.submit(header, payload, replaces=save.replaces)
