"""The reader takes blocks from the tail, leaves to computing what is claimed, and ends when it is told to."""

from collections.abc import Iterator
from threading import Semaphore

import pytest

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_operations import Fetch, Load, LoadUnit
from kvchat.engine.cache.prefix_index import IndexNode
from kvchat.engine.memory.reader import NUM_AHEAD, Job, Landed, Reader
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.pure

BLOCK_BYTES = 100


def unit(number: int) -> LoadUnit:
    key, parent = BlockKey(bytes([number]) * 32), BlockKey(bytes([number + 1]) * 32)
    node = IndexNode(key, parent, (number,), number)
    return LoadUnit(
        number, node, (Load(GroupId(0), key, parent, (number,), BlockId(number)),), BLOCK_BYTES, Tier.DISK
    )


def units(start: int, end: int) -> list[LoadUnit]:
    return [unit(number) for number in reversed(range(start, end))]


class Medium:
    """Gives as many blocks as it is told to."""

    def __init__(self) -> None:
        self.passes = Semaphore(0)
        self.taken: list[BlockId] = []
        self.missing: set[int] = set()

    def fetch(self, move: Fetch) -> bool:
        self.passes.acquire()
        self.taken.append(move.target)
        return move.target not in self.missing


@pytest.fixture
def medium() -> Medium:
    return Medium()


@pytest.fixture
def reader(medium: Medium) -> Iterator[Reader]:
    reader = Reader(medium.fetch, max_bytes=20 * BLOCK_BYTES, num_threads=1)
    yield reader
    medium.passes.release(1000)
    reader.close()


def take(reader: Reader, num_units: int) -> list[Landed]:
    landed: list[Landed] = []
    while len(landed) < num_units:
        reader.wait(0.01)
        landed += reader.collect()
    return landed


def submit(reader: Reader, start: int, end: int, *, is_urgent: bool = True) -> Job:
    job = reader.submit(units(start, end), is_urgent=is_urgent)
    assert job is not None
    return job


def test_what_is_claimed_is_not_read_and_what_is_being_read_cannot_be_claimed(
    reader: Reader, medium: Medium
) -> None:
    job = submit(reader, 0, 6)
    medium.passes.release(1)
    take(reader, 1)
    while job.num_taken < 2:
        reader.wait(0.01)
    assert reader.claim(job, 3) == 3
    assert reader.claim(job, 6) == 4, "block 4 is being read"
    medium.passes.release(9)
    take(reader, 1)
    assert job.is_over
    assert medium.taken == [5, 4]


def test_blocks_are_read_from_the_last_to_the_first_and_one_that_is_not_to_be_had_is_told(
    reader: Reader, medium: Medium
) -> None:
    medium.missing = {2}
    job = submit(reader, 0, 4)
    medium.passes.release(4)
    landed = [(each.unit.number, *each.arrived) for each in take(reader, 4)]
    assert landed == [(3, True), (2, False), (1, True), (0, True)]
    assert job.is_over


def test_a_cancelled_job_is_over_once_the_block_on_its_way_has_landed(reader: Reader, medium: Medium) -> None:
    job = submit(reader, 0, 5)
    while job.num_taken < 1:
        reader.wait(0.01)
    reader.cancel(job)
    assert not job.is_over
    medium.passes.release(5)
    take(reader, 1)
    assert job.is_over
    assert medium.taken == [4]


def test_the_queue_is_bounded_in_bytes_and_takes_a_larger_job_when_nothing_waits(
    reader: Reader, medium: Medium
) -> None:
    first = submit(reader, 0, 30)
    assert reader.submit(units(30, 32)) is None
    reader.cancel(first)
    submit(reader, 30, 32)


def test_what_a_request_waits_for_comes_before_what_nobody_waits_for(reader: Reader, medium: Medium) -> None:
    ahead = submit(reader, 0, 4, is_urgent=False)
    while ahead.num_taken < 1:
        reader.wait(0.01)
    submit(reader, 10, 13)
    medium.passes.release(7)
    assert [landed.unit.number for landed in take(reader, 7)] == [3, 12, 11, 10, 2, 1, 0]


def announcing(medium: Medium, *, is_near: bool) -> tuple[Reader, list[BlockId]]:
    """Return a reader, and the blocks that it reads ahead; `is_near`: that they need not be."""
    announced: list[BlockId] = []

    def read_ahead(move: Fetch) -> bool:
        announced.append(move.target)
        return is_near

    return Reader(medium.fetch, max_bytes=2**20, read_ahead=read_ahead, num_threads=1), announced


def test_what_is_read_soon_is_read_ahead_once_and_before_it_is_read(medium: Medium) -> None:
    """Never far ahead: what is read ahead is fetched from the medium, needed or not."""
    reader, announced = announcing(medium, is_near=False)
    job = submit(reader, 0, 40)
    for num_read in range(8):
        medium.passes.release()
        take(reader, 1)
        assert set(medium.taken) <= set(announced)
        assert len(announced) <= num_read + 2 + NUM_AHEAD
    assert reader.claim(job, 20) == 20
    medium.passes.release(40)
    while not job.is_over:
        reader.wait(0.01)
        reader.collect()
    reader.close()
    assert announced == list(range(39, 19, -1))


def test_where_blocks_are_near_only_some_are_read_ahead(medium: Medium) -> None:
    reader, announced = announcing(medium, is_near=True)
    submit(reader, 0, 100)
    medium.passes.release(100)
    assert len(take(reader, 100)) == 100
    reader.close()
    assert NUM_AHEAD < len(announced) < 50


def test_waiting_ends_at_once_where_nothing_is_read(reader: Reader) -> None:
    reader.wait(PATIENCE_S)
    assert reader.collect() == []


def test_a_bug_in_a_move_reaches_the_engine() -> None:
    def fetch(move: Fetch) -> bool:
        raise ZeroDivisionError

    reader = Reader(fetch, max_bytes=BLOCK_BYTES)
    reader.submit(units(0, 2))
    reader.wait(PATIENCE_S)
    with pytest.raises(ZeroDivisionError):
        reader.collect()
    reader.close()
