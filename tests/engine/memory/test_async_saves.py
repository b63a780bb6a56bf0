"""Blocks that leave the device beside the computation hold what they held when they were taken."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from threading import Event as Flag

import pytest
import torch

from kvchat.engine.api.ids import BlockId, GroupId, block_key, root_key
from kvchat.engine.cache.block_operations import Load, Save
from kvchat.engine.kernels.stream_protocol import Event, InlineStreams, Stream, Work
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.disk.block_file import BlockHeader
from kvchat.engine.memory.disk.write_queue import BlockWriteQueue
from kvchat.engine.memory.host_copies import AsyncTransport
from kvchat.engine.memory.rates import Rates
from kvchat.engine.memory.saver import AsyncCopy, AsyncSaves, Saver
from kvchat.engine.memory.tier_mover import TierMover
from tests.engine.memory.chains import FINGERPRINT
from tests.engine.memory.delayed_streams import DelayedStreams
from tests.engine.memory.fake_disk import FakeDisk
from tests.engine.memory.test_host_copies import BLOCK_SIZE, GROUPS, NUM_BLOCKS, fill, make_host, make_pool
from tests.engine.memory.test_tier_mover import WatchedFiles, store_of
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.cpu


def plain(num_bytes: int) -> torch.Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8)


def take_at_random(seed: int, *, forgets: Stream | None = None) -> bool:
    """Take blocks that are written over right behind; return whether any byte differs from the moment."""
    random, pool, as_taken = Random(seed), make_pool(), make_pool()
    under_way: list[tuple[AsyncCopy, bytes]] = []
    found = []

    def look() -> None:
        taken, expected = under_way.pop(random.randrange(len(under_way)))
        found.append(bytes(taken.wait()) == expected)
        taken.release()

    streams = DelayedStreams(seed, forgets=forgets)
    saves = AsyncSaves(pool, streams, 3 * pool.block_bytes(GROUPS[0]), plain)
    for number in range(1, 60):
        group, block = random.choice(GROUPS), BlockId(random.randrange(NUM_BLOCKS))
        streams.compute(lambda of=(group, block, number): fill(pool, *of))
        fill(as_taken, group, block, number)
        if saves.has_room(group):
            num_tokens = random.randint(1, BLOCK_SIZE)
            expected = bytes(as_taken.read_block(group, block, num_tokens))
            under_way.append((saves.take(group, block, num_tokens), expected))
        if under_way and random.random() < 0.6:
            look()
    while under_way:
        look()
    assert len(found) > 20
    return not all(found)


@pytest.mark.parametrize("seed", range(8))
def test_what_arrives_is_what_was_there_when_it_was_taken(seed: int) -> None:
    """Trap 21: blocks are computed over right behind, and places in host memory are used again."""
    assert not take_at_random(seed)


def test_a_copy_that_does_not_wait_for_the_computation_is_seen() -> None:
    with pytest.raises(IndexError):
        take_at_random(0, forgets=Stream.OUT)


class HeldStreams(InlineStreams):
    """Computes at once; beside that nothing happens until it is let."""

    def __init__(self) -> None:
        self.num_beside = 0
        self._waiting: list[tuple[Work, Flag]] = []
        self._is_held = True

    def beside(self, lane: Stream, work: Work, after: Sequence[Event]) -> Event:
        self.num_beside += 1
        if not self._is_held:
            return super().beside(lane, work, after)
        self._waiting.append((work, done := Flag()))
        return Moment(done)

    def let(self) -> None:
        """Do what waits, and from now on everything at once."""
        self._is_held = False
        for work, done in self._waiting:
            work()
            done.set()


class Moment:
    """The end of some work."""

    def __init__(self, done: Flag) -> None:
        self._done = done

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        assert self._done.wait(PATIENCE_S)

    def seconds(self) -> float:
        return 0.001


def saves_of(group: GroupId, num_blocks: int = NUM_BLOCKS) -> list[Save]:
    parent = root_key(FINGERPRINT)
    ids = [(number, number) for number in range(num_blocks)]
    return [
        Save(group=group, block=BlockId(number), key=block_key(parent, of), parent=parent, token_ids=of)
        for number, of in enumerate(ids)
    ]


def filled_pool() -> DevicePool:
    pool = make_pool()
    for group in GROUPS:
        for block in range(NUM_BLOCKS):
            fill(pool, group, block, 1 + block)
    return pool


def test_a_place_of_what_was_given_up_is_used_again_once_its_copy_is_done() -> None:
    pool, streams, sink = filled_pool(), HeldStreams(), FakeDisk()
    transport = AsyncSaves(pool, streams, pool.block_bytes(GROUPS[0]), plain)
    writer = BlockWriteQueue(sink, max_bytes=1)
    saver = Saver(pool, sink, writer, lambda _: True, transport)  # type: ignore[arg-type]
    saver.save_blocks(saves_of(GROUPS[0]))
    first = transport.take(GROUPS[0], BlockId(0), BLOCK_SIZE)
    assert not transport.has_room(GROUPS[0])
    first.release()
    assert not transport.has_room(GROUPS[0]), "the device still writes there"
    streams.let()
    assert transport.has_room(GROUPS[0])
    saver.give_up()
    assert writer.rest(PATIENCE_S)
    assert all(transport.has_room(GROUPS[0]) and transport.take(GROUPS[0], BlockId(0), 1) for _ in range(2))
    saver.close(PATIENCE_S)


def bring_at_random(seed: int, *, forgets: Stream | None = None) -> bool:
    """Bring blocks to where something was computed just before; return whether any byte differs."""
    random, pool, expected = Random(seed), make_pool(), {}
    streams = DelayedStreams(seed, forgets=forgets)
    transport = AsyncTransport(pool, make_host(pool), Rates(), streams, allocate=plain)
    for number in range(1, 30):
        group, block = random.choice(GROUPS), BlockId(random.randrange(NUM_BLOCKS))
        streams.compute(lambda of=(group, block, number): fill(pool, *of))
        data = random.randbytes(pool.block_bytes(group))
        transport.bring(group, block, filling(data))
        expected[group, block] = data
    streams.mark().wait()
    return any(bytes(pool.read_block(*where, BLOCK_SIZE)) != data for where, data in expected.items())


def filling(data: bytes) -> Callable[[memoryview], None]:
    def fill_run(run: memoryview) -> None:
        run[:] = data

    return fill_run


@pytest.mark.parametrize("seed", range(6))
def test_what_is_brought_from_the_disk_comes_after_what_was_computed_before(seed: int) -> None:
    """Trap 21: a block's place was another's until a moment ago."""
    assert not bring_at_random(seed)


def test_a_block_that_is_brought_too_early_is_seen() -> None:
    assert any(bring_at_random(seed, forgets=Stream.IN) for seed in range(6))


def test_a_block_goes_from_the_disk_to_the_device_on_the_lane_for_that(tmp_path: Path) -> None:
    pool, group = filled_pool(), GROUPS[0]
    (save,) = saves_of(group, 1)
    with closing(store_of(pool, tmp_path, WatchedFiles())) as store:
        data = pool.read_block(group, BlockId(3), BLOCK_SIZE)
        assert store.write([(BlockHeader.of(group, save.parent, save.token_ids), data)])
        streams = HeldStreams()
        streams.let()
        transport = AsyncTransport(pool, make_host(pool), Rates(), streams, allocate=plain)
        mover = TierMover(pool, store, transport)
        assert mover.fetch(Load(group, save.key, save.parent, save.token_ids, BlockId(5)))
        assert bytes(pool.read_block(group, BlockId(5), BLOCK_SIZE)) == bytes(data)
        assert streams.num_beside == 1
