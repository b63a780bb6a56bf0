"""Transport of block bytes between device pool and host memory."""

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Protocol

from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.plan import Copy, Demote, Move, Promote
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.host_pool import HostPool
from kvchat.engine.memory.pages import Pages
from kvchat.engine.memory.rates import Direction, Rates


class Transport(Protocol):
    """Carries out moves between the device and host memory."""

    def execute(self, moves: Iterable[Move]) -> None:
        """Carry out moves in their order, as far as anybody can tell: whatever is computed, moved or read
        afterwards finds them done. Never waits for the device but when too much is under way.
        """
        ...

    def promote(self, move: Promote) -> None:
        """Bring a block to the device, in any thread; it is there on return."""
        ...

    def bring(self, group: GroupId, target: BlockId, fill: Callable[[memoryview], None]) -> None:
        """Fill a block of the device, in any thread; it is there on return.

        Args:
            fill: puts its bytes into a run of its size; where it raises, the block is not filled.
        """
        ...

    def settle(self) -> None:
        """Wait until host memory holds all that was moved there."""
        ...


class DirectTransport:
    """In the calling thread, byte by byte: where the device is the processor, or one without streams."""

    def __init__(self, pool: DevicePool, host: HostPool, rates: Rates) -> None:
        self._pool = pool
        self._host = host
        self._rates = rates
        self._pages = Pages()

    def execute(self, moves: Iterable[Move]) -> None:
        for move in moves:
            start_s = perf_counter()
            if isinstance(move, Copy):
                self._pool.copy(move.group, move.source, move.target, move.num_tokens)
                continue
            self._pool.read_into(move.group, move.source, self._host.view(move.group, move.place))
            num_bytes = self._pool.block_bytes(move.group)
            self._rates.observe_move(Tier.HOST, Direction.STORE, num_bytes, perf_counter() - start_s)

    def promote(self, move: Promote) -> None:
        self._pool.write_block(move.group, move.target, self._host.view(move.group, move.place))

    def bring(self, group: GroupId, target: BlockId, fill: Callable[[memoryview], None]) -> None:
        # Not in the pool itself, where a block has a piece per layer: verifying it piece by piece would
        # change between threads that often.
        data = self._pages.take(self._pool.block_bytes(group))
        fill(data)
        self._pool.write_block(group, target, data)

    def settle(self) -> None:
        pass


def runs_of(moves: Iterable[Move]) -> Iterable[Sequence[Copy] | Sequence[Demote]]:
    """Yield moves that can be carried out at once, whatever their order: of one kind and one group, and no
    block that is written is also read, or written twice, within a run. Pure.
    """
    run: list[Move] = []
    read: set[int] = set()
    written: set[int] = set()
    for move in moves:
        target = move.target if isinstance(move, Copy) else None
        fits = (
            run
            and type(run[0]) is type(move)
            and run[0].group == move.group
            and move.source not in written
            and target not in read | written
        )
        if run and not fits:
            yield _of_one_kind(run)
            run, read, written = [], set(), set()
        run.append(move)
        read.add(move.source)
        written |= {target} if target is not None else set()
    if run:
        yield _of_one_kind(run)


def _of_one_kind(run: Sequence[Move]) -> Sequence[Copy] | Sequence[Demote]:
    copies = [move for move in run if isinstance(move, Copy)]
    return copies or [move for move in run if isinstance(move, Demote)]
