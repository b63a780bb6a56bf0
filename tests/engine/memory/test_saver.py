"""Waiting for the disk comes to an end, however slowly the disk takes what is queued."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from threading import Event
from time import monotonic

import pytest

from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.cache.block_operations import Save
from kvchat.engine.memory.disk.block_file import BlockHeader
from kvchat.engine.memory.disk.io import Buffer
from kvchat.engine.memory.disk.write_queue import BlockWriteQueue
from kvchat.engine.memory.saver import STEP_BYTES, Saver, SaveTransport
from tests.engine.memory.chains import FULL, Block, chain
from tests.engine.memory.fake_disk import FakeDisk
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.pure

DRAIN_S = 0.4
BLOCKS = chain(list(range(4 * 30)))


class SlowDisk(FakeDisk):
    """Takes every block within the time of a drain, and far from all of them."""

    def write(self, blocks: Iterable[tuple[BlockHeader, Buffer]], *, is_wanted: bool = False) -> int:
        Event().wait(DRAIN_S / 8)
        return super().write(blocks)


def test_a_drain_ends_in_its_time_and_drops_what_a_slow_disk_has_not_taken_by_then() -> None:
    disk = SlowDisk()
    writer = BlockWriteQueue(disk, max_bytes=1)
    saver = Saver(NumberedPool(), disk, writer, lambda _: True)  # type: ignore[arg-type]
    saver.save_blocks(saves_of(BLOCKS))
    saver.drain(DRAIN_S)
    written = disk.written
    assert len(written) < len(BLOCKS) // 2
    assert saver.num_waiting == writer.queued_bytes == 0
    saver.close(DRAIN_S)
    assert disk.written == written


class NumberedPool:
    """Blocks that hold their number in each of eight slots."""

    num_bytes = 2**10

    def block_bytes(self, group: GroupId) -> int:
        return 8

    def read_into(self, group: GroupId, block: BlockId, out: memoryview) -> None:
        out[:] = bytes([block]) * 8

    def clear_slots(self, group: GroupId, data: memoryview, num_tokens: int) -> None:
        data[num_tokens:] = bytes(8 - num_tokens)


def test_memory_of_blocks_that_were_written_holds_the_next_ones_and_that_of_others_is_left_alone() -> None:
    reads = SaveTransport(NumberedPool())  # type: ignore[arg-type]
    first, second = (reads.take(FULL, BlockId(number), 8) for number in (1, 2))
    run = first.wait()
    assert (bytes(run), bytes(second.wait())) == (b"\1" * 8, b"\2" * 8)
    first.release()
    third = reads.take(FULL, BlockId(3), 2)
    assert third.wait().obj is run.obj
    assert (bytes(third.wait()), bytes(second.wait())) == (b"\3\3" + bytes(6), b"\2" * 8)


class CountingPool(NumberedPool):
    """Blocks of a megabyte, as far as anybody asks."""

    num_bytes = 8 * STEP_BYTES

    def __init__(self) -> None:
        self.num_read = 0

    def block_bytes(self, group: GroupId) -> int:
        return STEP_BYTES // 4

    def read_into(self, group: GroupId, block: BlockId, out: memoryview) -> None:
        self.num_read += 1

    def clear_slots(self, group: GroupId, data: memoryview, num_tokens: int) -> None:
        pass


def saves_of(blocks: list[Block]) -> list[Save]:
    return [
        Save(
            group=FULL,
            block=BlockId(0),
            key=block.key,
            parent=block.header.parent,
            token_ids=block.header.token_ids,
        )
        for block in blocks
    ]


def test_a_step_takes_a_few_blocks_off_the_device_and_later_ones_take_the_rest() -> None:
    disk, pool, saves = FakeDisk(), CountingPool(), saves_of(BLOCKS[:11])
    saver = Saver(pool, disk, BlockWriteQueue(disk, max_bytes=1 << 30), lambda _: True)  # type: ignore[arg-type]
    saver.save_blocks(saves)
    assert (pool.num_read, saver.num_waiting) == (4, 7)
    saver.pump()
    assert (pool.num_read, saver.num_waiting) == (8, 3)
    assert saver.flush(PATIENCE_S)
    assert disk.written == [save.key for save in saves]
    saver.save_blocks(saves_of(BLOCKS[11:20]), most_bytes=None)
    assert (pool.num_read, saver.num_waiting) == (20, 0), "no step waits, and the queue is filled at once"
    saver.close(PATIENCE_S)


def test_a_block_that_waits_and_has_left_its_place_keeps_nobody_from_saving_it_where_it_is_now() -> None:
    disk, pool, [first, stale] = FakeDisk(is_open=False), CountingPool(), saves_of(BLOCKS[:2])
    now = replace(stale, block=BlockId(7))
    there: set[BlockId] = {stale.block}
    writer = BlockWriteQueue(disk, max_bytes=4)  # one at a time
    saver = Saver(pool, disk, writer, lambda save: save.block in there)  # type: ignore[arg-type]
    saver.save_blocks([first, stale])
    there = {now.block}
    assert saver.num_waiting == 1
    saver.save_missing([now])
    assert saver.num_waiting == 1
    assert saver._waiting[0] == now
    disk.open.set()
    saver.close(PATIENCE_S)
    assert disk.written == [first.key, now.key]


def test_a_closed_writer_gives_back_what_it_has_not_written() -> None:
    disk, reads = FakeDisk(is_open=False), SaveTransport(NumberedPool())  # type: ignore[arg-type]
    writer = BlockWriteQueue(disk, max_bytes=1 << 30)  # type: ignore[arg-type]
    ended: list[int] = []
    for number, block in enumerate(BLOCKS[:3]):
        taken = reads.take(FULL, BlockId(number), 8)
        taken.release = partial(ended.append, number)  # type: ignore[method-assign]
        writer.submit(block.header, taken)
    assert not writer.close(0.05)
    assert ended == [1, 2]
    disk.open.set()


def test_what_is_on_its_way_to_the_disk_is_not_read_again_at_the_end_of_a_turn() -> None:
    disk, pool, saves = FakeDisk(is_open=False), CountingPool(), saves_of(BLOCKS[:11])
    saver = Saver(pool, disk, BlockWriteQueue(disk, max_bytes=1 << 30), lambda _: True)  # type: ignore[arg-type]
    saver.save_blocks(saves[:6])
    for _ in range(2):
        saver.save_missing(saves)
    assert (pool.num_read, saver.num_waiting) == (11, 0)
    disk.open.set()
    assert saver.flush(PATIENCE_S)
    saver.save_missing(saves)
    assert saver.flush(PATIENCE_S)
    assert disk.written == [save.key for save in saves]
    saver.close(PATIENCE_S)


def test_a_writer_that_steps_aside_has_a_few_blocks_in_hand_and_a_turn_that_ends_gives_it_all() -> None:
    disk, pool, saves = FakeDisk(is_open=False), CountingPool(), saves_of(BLOCKS[:21])
    saver = Saver(pool, disk, BlockWriteQueue(disk, max_bytes=1 << 30), lambda _: True)  # type: ignore[arg-type]
    saver.step_aside(True)
    saver.save_blocks(saves)
    for _ in range(3):
        saver.pump()
    assert (pool.num_read, saver.num_waiting) == (4, 17)
    saver.step_aside(False)
    saver.pump()
    assert (pool.num_read, saver.num_waiting) == (8, 13)
    saver.step_aside(True)
    saver.save_missing(saves)
    assert (pool.num_read, saver.num_waiting) == (21, 0)
    disk.open.set()
    saver.close(PATIENCE_S)
    assert disk.written == [save.key for save in saves]


def test_a_writer_that_steps_aside_is_given_the_next_block_once_it_has_written_one() -> None:
    disk, pool, saves = SlowDisk(), CountingPool(), saves_of(BLOCKS[:7])
    writer = BlockWriteQueue(disk, max_bytes=1 << 30)
    saver = Saver(pool, disk, writer, lambda _: True)  # type: ignore[arg-type]
    saver.step_aside(True)
    saver.save_blocks(saves)
    until_s = monotonic() + PATIENCE_S
    while len(disk.written) < len(saves) and monotonic() < until_s:
        saver.pump()
        assert pool.num_read <= len(disk.written) + 4
        Event().wait(0.005)
    assert len(disk.written) == pool.num_read == len(saves)
    saver.close(PATIENCE_S)


class ToldWriter:
    """A writer whose queue is full, and that remembers whether it is to step aside."""

    steps_aside = False

    def has_room(self, num_bytes: int) -> bool:
        return False

    def step_aside(self, wanted: bool) -> None:
        self.steps_aside = wanted


@pytest.mark.parametrize(("num_waiting", "steps_aside"), [(0, True), (16, True), (17, False)])
def test_writing_steps_aside_until_half_of_the_pool_waits_for_it(num_waiting: int, steps_aside: bool) -> None:
    writer, saves = ToldWriter(), saves_of(BLOCKS[:num_waiting])
    saver = Saver(CountingPool(), FakeDisk(is_open=False), writer, lambda _: True)  # type: ignore[arg-type]
    saver.save_blocks(saves)
    assert saver.num_waiting == num_waiting
    saver.step_aside(True)
    assert writer.steps_aside == steps_aside
    saver.step_aside(False)
    assert not writer.steps_aside
