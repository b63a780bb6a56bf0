"""The writer makes blocks durable beside decoding, in order, and never raises into the engine."""

from collections.abc import Iterable
from itertools import pairwise
from threading import Event
from time import monotonic, thread_time

import pytest

from kvchat.engine.memory.disk import write_queue as writer_module
from kvchat.engine.memory.disk.block_file import BlockHeader
from kvchat.engine.memory.disk.io import Buffer
from kvchat.engine.memory.disk.write_queue import REST_PER_WRITE, BlockWriteQueue
from kvchat.errors import StorageError
from tests.engine.memory.chains import Copied, chain
from tests.engine.memory.fake_disk import FakeDisk
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.pure


def test_a_new_tail_replaces_the_one_before_it_once_it_is_durable() -> None:
    disk, (older,), (newer,) = FakeDisk(), chain([1, 2]), chain([1, 2, 3])
    disk.refusal = StorageError("full")
    writer = BlockWriteQueue(disk, max_bytes=1 << 20)
    writer.submit(newer.header, Copied(newer.payload), replaces=older.key)
    assert not writer.flush(PATIENCE_S)
    assert disk.removed == []
    disk.refusal = None
    writer.submit(newer.header, Copied(newer.payload), replaces=newer.key)
    assert writer.close(PATIENCE_S)
    assert (disk.removed, disk.written) == ([older.key], [newer.key])


def test_a_full_queue_refuses_at_once_and_takes_more_later() -> None:
    disk, blocks = FakeDisk(), chain(list(range(12)))
    num_bytes = len(blocks[0].payload)
    disk.open.clear()
    writer = BlockWriteQueue(disk, max_bytes=2 * num_bytes)
    assert writer.submit(blocks[0].header, Copied(blocks[0].payload))
    assert writer.submit(blocks[1].header, Copied(blocks[1].payload))
    assert not writer.submit(blocks[2].header, Copied(blocks[2].payload))
    assert writer.queued_bytes == 2 * num_bytes
    disk.open.set()
    assert writer.flush(PATIENCE_S)
    assert writer.submit(blocks[2].header, Copied(blocks[2].payload))
    assert writer.close(PATIENCE_S)
    assert disk.written == [block.key for block in blocks]


class BusyDisk(FakeDisk):
    """A disk whose writing takes the processor. `times`: of each when it began, ended, and what it took."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[tuple[float, float, float]] = []

    def write(self, blocks: Iterable[tuple[BlockHeader, Buffer]], *, is_wanted: bool = False) -> int:
        start_s, begun_s = monotonic(), thread_time()
        while thread_time() < begun_s + 0.002:
            pass
        num_written = super().write(blocks)
        self.times.append((start_s, monotonic(), thread_time() - begun_s))
        return num_written


def test_the_thread_rests_behind_each_block_where_it_steps_aside() -> None:
    disk, blocks = BusyDisk(), chain(list(range(12)))
    writer = BlockWriteQueue(disk, max_bytes=1 << 20)
    writer.step_aside(True)
    assert all(writer.submit(block.header, Copied(block.payload)) for block in blocks)
    while len(disk.times) < len(blocks):
        Event().wait(0.01)
    rests = [later[0] - earlier[1] for earlier, later in pairwise(disk.times)]
    wanted = [REST_PER_WRITE * spent_s for _, _, spent_s in disk.times[:-1]]
    # The last digits are the clock's.
    assert all(rest >= 0.99 * least for rest, least in zip(rests, wanted, strict=True))
    assert writer.close(PATIENCE_S)


@pytest.mark.parametrize("how", ["flush", "close", "no more", "never"])
def test_nobody_waits_for_a_rest(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "REST_PER_WRITE", 1e6)
    disk, blocks = BusyDisk(), chain(list(range(12)))
    writer = BlockWriteQueue(disk, max_bytes=1 << 20)
    writer.step_aside(how != "never")
    assert all(writer.submit(block.header, Copied(block.payload)) for block in blocks)
    assert disk.attempted.wait(PATIENCE_S)
    if how == "flush":
        assert writer.flush(PATIENCE_S)
    elif how == "no more":
        writer.step_aside(False)
    elif how == "close":
        assert writer.close(PATIENCE_S)
    wait_until(lambda: not writer.queued_bytes)
    assert disk.written == [block.key for block in blocks]
    assert writer.close(PATIENCE_S)


def test_a_full_disk_is_told_tried_again_and_forgotten_once_it_has_room() -> None:
    """Trap 25: a full disk never fails the chat."""
    disk, blocks = FakeDisk(), chain(list(range(8)))
    disk.refusal = StorageError("There is no room left")
    writer = BlockWriteQueue(disk, max_bytes=1 << 20, first_pause_s=3600.0)  # only a flush ends it
    assert writer.problem is None
    assert writer.submit(blocks[0].header, Copied(blocks[0].payload))
    assert not writer.flush(PATIENCE_S)
    assert writer.problem == "There is no room left"
    assert writer.submit(blocks[1].header, Copied(blocks[1].payload))
    disk.refusal = None
    assert writer.flush(PATIENCE_S)
    assert writer.problem is None
    assert disk.written == [block.key for block in blocks]
    assert writer.close(PATIENCE_S)


def test_a_disk_that_refuses_is_tried_again_without_being_asked() -> None:
    disk, (block,) = FakeDisk(), chain([1, 2, 3, 4])
    disk.refusal = StorageError("full")
    writer = BlockWriteQueue(disk, max_bytes=1 << 20, first_pause_s=0.01)
    writer.submit(block.header, Copied(block.payload))
    assert disk.attempted.wait(PATIENCE_S)
    disk.attempted.clear()
    assert disk.attempted.wait(PATIENCE_S)
    disk.refusal = None
    disk.attempted.clear()
    assert disk.attempted.wait(PATIENCE_S)
    assert writer.close(PATIENCE_S)
    assert disk.written == [block.key]


def test_while_the_disk_refuses_what_no_longer_fits_is_dropped_and_nobody_waits() -> None:
    disk, blocks = FakeDisk(), chain(list(range(12)))
    disk.refusal = StorageError("full")
    writer = BlockWriteQueue(disk, max_bytes=len(blocks[0].payload))
    assert writer.submit(blocks[0].header, Copied(blocks[0].payload))
    assert not writer.flush(PATIENCE_S)
    assert writer.submit(blocks[1].header, Copied(blocks[1].payload))
    assert writer.queued_bytes == len(blocks[0].payload)
    assert not writer.close(PATIENCE_S)
    assert disk.written == []


def test_a_bug_costs_one_block_and_not_the_thread() -> None:
    disk, blocks = FakeDisk(), chain(list(range(8)))
    disk.refusal = ZeroDivisionError("a bug")
    writer = BlockWriteQueue(disk, max_bytes=1 << 20)
    writer.submit(blocks[0].header, Copied(blocks[0].payload))
    assert writer.flush(PATIENCE_S)
    assert writer.problem is not None
    assert "a bug" in writer.problem
    disk.refusal = None
    writer.submit(blocks[1].header, Copied(blocks[1].payload))
    assert writer.close(PATIENCE_S)
    assert disk.written == [blocks[1].key]
    assert writer.problem is None


def test_a_closed_writer_takes_nothing() -> None:
    disk, (block,) = FakeDisk(), chain([1, 2, 3, 4])
    writer = BlockWriteQueue(disk, max_bytes=1 << 20)
    assert writer.close(PATIENCE_S)
    assert not writer.submit(block.header, Copied(block.payload))
    assert writer.close(PATIENCE_S)


def test_what_is_dropped_is_never_written_also_where_the_disk_refused_it_before() -> None:
    disk, blocks = FakeDisk(), chain(list(range(12)))
    disk.refusal = StorageError("full")
    writer = BlockWriteQueue(disk, max_bytes=1 << 20, first_pause_s=3600.0)
    for block in blocks:
        writer.submit(block.header, Copied(block.payload))
    assert not writer.flush(PATIENCE_S)
    writer.drop({blocks[0].key})
    assert writer.queued_bytes == 2 * len(blocks[0].payload)
    disk.refusal = None
    assert writer.flush(PATIENCE_S)
    assert disk.written == [block.key for block in blocks[1:]]
    writer.drop()
    assert writer.close(PATIENCE_S)


def test_what_is_being_written_when_it_is_dropped_is_not_tried_again() -> None:
    disk, blocks = FakeDisk(), chain(list(range(12)))
    disk.open.clear()
    writer = BlockWriteQueue(disk, max_bytes=1 << 20, first_pause_s=0.0)
    for block in blocks:
        writer.submit(block.header, Copied(block.payload))
    assert disk.attempted.wait(PATIENCE_S)
    disk.refusal = StorageError("full")
    writer.drop()
    assert not writer.rest(0.0)
    disk.open.set()
    assert writer.rest(PATIENCE_S)
    disk.refusal = None
    assert writer.flush(PATIENCE_S)
    assert disk.num_attempts == 1
    assert disk.written == []
    assert writer.queued_bytes == 0
    assert writer.close(PATIENCE_S)
