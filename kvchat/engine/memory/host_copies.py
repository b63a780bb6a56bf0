"""Transport of block bytes between device pool and host memory."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_operations import Copy, Demote, Move, Promote
from kvchat.engine.kernels.move_blocks import BlockMoves
from kvchat.engine.kernels.stream_protocol import Event, Stream, Streams
from kvchat.engine.memory.aligned_memory import ThreadRun
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.host_pool import HostPool
from kvchat.engine.memory.pinned import pinned
from kvchat.engine.memory.rates import Direction, Rates

MOST_BYTES = 2**28
"""Gathered on the device and not yet in host memory. A launch gathers at most half of it."""


class Transport:
    """Carries out moves between the device and host memory in the calling thread, byte by byte: where the
    device is the processor, or one without streams.
    """

    def __init__(self, pool: DevicePool, host: HostPool, rates: Rates) -> None:
        self._pool = pool
        self._host = host
        self._rates = rates
        self._run = ThreadRun()

    def execute(self, moves: Iterable[Move]) -> None:
        """Carry out moves in their order, as far as anybody can tell: whatever is computed, moved or read
        afterwards finds them done. Never waits for the device but when too much is under way.
        """
        for move in moves:
            start_s = perf_counter()
            if isinstance(move, Copy):
                self._pool.copy(move.group, move.source, move.target, move.num_tokens)
                continue
            self._pool.read_into(move.group, move.source, self._host.view(move.group, move.place))
            num_bytes = self._pool.block_bytes(move.group)
            self._rates.observe_move(Tier.HOST, Direction.STORE, num_bytes, perf_counter() - start_s)

    def promote(self, move: Promote) -> None:
        """Bring a block to the device, in any thread; it is there on return."""
        self._pool.write_block(move.group, move.target, self._host.view(move.group, move.place))

    def bring(self, group: GroupId, target: BlockId, fill: Callable[[memoryview], None]) -> None:
        """Fill a block of the device, in any thread; it is there on return.

        Args:
            fill: puts its bytes into a run of its size; where it raises, the block is not filled.
        """
        # Not in the pool itself, where a block has a piece per layer: verifying it piece by piece would
        # change between threads that often.
        data = self._run.take(self._pool.block_bytes(group))
        fill(data)
        self._land(group, target, data)

    def settle(self) -> None:
        """Wait until host memory holds all that was moved there."""

    def _land(self, group: GroupId, target: BlockId, run: memoryview) -> None:
        self._pool.write_block(group, target, run)


@dataclass(frozen=True, slots=True)
class _Leaving:
    """Blocks that are being copied to host memory. `gathered` lives as long as the copies read it."""

    event: Event
    gathered: Sequence[Tensor]
    num_bytes: int
    places: Sequence[tuple[GroupId, BlockId]]


class AsyncTransport(Transport):
    """Carries out moves on streams.

    Args:
        most_bytes: more is never under way to host memory.
        allocate: number of bytes → host memory that the device reads by itself.
    """

    def __init__(
        self,
        pool: DevicePool,
        host: HostPool,
        rates: Rates,
        streams: Streams,
        most_bytes: int = MOST_BYTES,
        allocate: Callable[[int], Tensor] = pinned,
    ) -> None:
        super().__init__(pool, host, rates)
        self._streams = streams
        self._most_bytes = most_bytes
        self._run = ThreadRun(lambda num_bytes: allocate(num_bytes).numpy().data)
        self._leaving: deque[_Leaving] = deque()
        self._filled: dict[tuple[GroupId, BlockId], Event] = {}
        """Places in host memory that are being written, each with the event of its last copy."""

    def execute(self, moves: Iterable[Move]) -> None:
        for run in runs_of(moves):
            if isinstance(run[0], Copy):
                self._copy([move for move in run if isinstance(move, Copy)])
            else:
                self._demote([move for move in run if isinstance(move, Demote)])

    def promote(self, move: Promote) -> None:
        filled = self._filled.get((move.group, move.place))
        place = self._host.view(move.group, move.place)
        self._land(move.group, move.target, place, [filled] if filled else [])

    def _land(self, group: GroupId, target: BlockId, run: memoryview, after: Sequence[Event] = ()) -> None:
        """Copy a block's bytes to the device and wait for that, in the calling thread alone."""

        def bring() -> None:
            there = _bytes(run).to(self._pool.device, non_blocking=True)
            self._pool.moves(group).scatter([target], there[None])

        self._streams.beside(Stream.IN, bring, [self._streams.mark(), *after]).wait()

    def settle(self) -> None:
        while self._leaving:
            self._take_oldest()

    def _copy(self, run: Sequence[Copy]) -> None:
        """Copy whole blocks: slots behind a copy's tokens are never read before they are written."""
        sources, targets = [move.source for move in run], [move.target for move in run]
        self._streams.compute(lambda: self._pool.moves(run[0].group).copy(sources, targets))

    def _demote(self, run: Sequence[Demote]) -> None:
        group = run[0].group
        block_bytes, moves = self._pool.block_bytes(group), self._pool.moves(group)
        at_once = max(1, self._most_bytes // 2 // block_bytes)
        for start in range(0, len(run), at_once):
            part = run[start : start + at_once]
            num_bytes = len(part) * block_bytes
            self._make_room(num_bytes)
            views = [self._host.view(group, move.place) for move in part]
            event, gathered = copy_out(self._streams, moves, [move.source for move in part], views)
            places = [(group, move.place) for move in part]
            self._filled.update(dict.fromkeys(places, event))
            self._leaving.append(_Leaving(event, gathered, num_bytes, places))

    def _make_room(self, num_bytes: int) -> None:
        """Forget what has arrived, and wait for the oldest copies where too much is under way."""
        while self._leaving and self._leaving[0].event.is_done:
            self._take_oldest()
        while self._leaving and sum(one.num_bytes for one in self._leaving) + num_bytes > self._most_bytes:
            self._take_oldest()

    def _take_oldest(self) -> None:
        oldest = self._leaving.popleft()
        oldest.event.wait()
        self._rates.observe_move(Tier.HOST, Direction.STORE, oldest.num_bytes, oldest.event.seconds())
        for name in oldest.places:
            if self._filled.get(name) is oldest.event:
                del self._filled[name]


def copy_out(
    streams: Streams, moves: BlockMoves, blocks: Sequence[BlockId], runs: Sequence[memoryview]
) -> tuple[Event, list[Tensor]]:
    """Begin to copy blocks to runs of host memory, as they are after all computation handed in so far. Waits
    for nothing.

    Returns: the end of the copies, and what they read, which has to live as long.
    """
    gathered: list[Tensor] = []
    targets = list(map(_bytes, runs))

    def gather() -> None:
        gathered.append(moves.gather(blocks))

    def copy() -> None:
        for target, row in zip(targets, gathered[0], strict=True):
            target.copy_(row, non_blocking=True)

    return streams.beside(Stream.OUT, copy, [streams.compute(gather)]), gathered


def _bytes(run: memoryview) -> Tensor:
    return torch.frombuffer(run, dtype=torch.uint8)


def runs_of(moves: Iterable[Move]) -> Iterable[Sequence[Move]]:
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
            yield run
            run, read, written = [], set(), set()
        run.append(move)
        read.add(move.source)
        written |= {target} if target is not None else set()
    if run:
        yield run
