"""Where no room is left although all that may go has gone, that is told, and saving goes on once there is."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kvchat.engine.cache.eviction import Eviction
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.engine.memory.disk.write_queue import BlockWriteQueue
from tests.engine.memory.chains import (
    BLOCK_SIZE,
    FINGERPRINT,
    FULL,
    Copied,
    block_behind,
    chain,
    open_store,
    put_blocks,
    read,
    write_all,
)
from tests.engine.memory.disk.small_disk import MakeDisk, conversation
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.pure

KEPT = chain(list(range(3 * BLOCK_SIZE)))
NEW = chain(list(range(100, 100 + 2 * BLOCK_SIZE)))


@contextmanager
def writing(store: DiskStore) -> Iterator[BlockWriteQueue]:
    writer = BlockWriteQueue(store, max_bytes=1 << 20, first_pause_s=0.01)
    try:
        yield writer
    finally:
        writer.close(PATIENCE_S)


@pytest.fixture
def limit_bytes(tmp_path: Path) -> int:
    """What three blocks take, which are kept by name."""
    num_bytes = put_blocks(tmp_path, KEPT)
    with closing(CacheAdmin(tmp_path)) as admin:
        admin.keep("spec", FINGERPRINT, [block.key for block in KEPT])
    return num_bytes


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_what_packs_and_pins_leave_no_room_for_is_told_and_saved_when_they_go(
    tmp_path: Path, limit_bytes: int, share: float
) -> None:
    """Also under a limit that was lowered below what is kept."""
    limit = int(limit_bytes * share)
    with closing(open_store(tmp_path, limit_bytes=limit)) as store, writing(store) as writer:
        for block in NEW:
            assert writer.submit(block.header, Copied(block.payload))
        assert not writer.flush(PATIENCE_S)
        assert writer.problem is not None
        for words in ("packs and pinned sessions keep", "--kv-disk-bytes", "sessions unpin", "pack rm"):
            assert words in writer.problem
        assert store.has_all([block.key for block in KEPT], FULL) == [True] * 3
        with closing(CacheAdmin(tmp_path)) as admin:
            admin.let_go("spec")
        while not writer.flush(PATIENCE_S):
            pass
        assert writer.problem is None
        assert read(store, NEW[-1]) == NEW[-1].payload
        assert store.total_usage().num_bytes <= limit


def test_weights_that_another_process_prepares_take_of_the_room_at_once(tmp_path: Path) -> None:
    weights = [0]
    limit_bytes = put_blocks(tmp_path / "sized", KEPT)
    with closing(open_store(tmp_path, limit_bytes=limit_bytes, elsewhere=lambda: weights[0])) as store:
        write_all(store, KEPT)
        weights[0] = limit_bytes // 2
        store.write([(NEW[0].header, NEW[0].payload)], is_wanted=True)
        assert store.total_usage().num_bytes + weights[0] <= limit_bytes
        assert read(store, NEW[0]) == NEW[0].payload


def test_one_block_that_is_larger_than_the_limit_is_told(tmp_path: Path) -> None:
    with closing(open_store(tmp_path, limit_bytes=100)) as store, writing(store) as writer:
        writer.submit(NEW[0].header, Copied(NEW[0].payload))
        assert not writer.flush(PATIENCE_S)
        assert "one block takes" in str(writer.problem)
        writer.drop()


def test_a_block_that_is_there_already_is_no_shortage(tmp_path: Path, limit_bytes: int) -> None:
    with closing(open_store(tmp_path, limit_bytes=limit_bytes)) as store, writing(store) as writer:
        writer.submit(NEW[0].header, Copied(NEW[0].payload))
        assert not writer.flush(PATIENCE_S)
        writer.drop()
        assert writer.rest(PATIENCE_S)
        writer.submit(KEPT[0].header, Copied(KEPT[0].payload))
        assert writer.flush(PATIENCE_S)
        assert writer.problem is None


@pytest.mark.parametrize("eviction", list(Eviction))
def test_of_a_conversation_longer_than_the_disk_the_beginning_stays_and_the_rest_is_told(
    make_disk: MakeDisk, eviction: Eviction
) -> None:
    """Also in later turns, which find it: what is used is not given up for an end that leads nowhere."""
    disk = make_disk(12, eviction)
    long, (other,) = conversation(1, 20), conversation(2, 1)
    keys = [block.key for block in long]
    with closing(disk.store) as store, writing(store) as writer:
        for _ in range(3):
            for block in long:
                disk.clock.now_s += 1
                assert writer.submit(block.header, Copied(block.payload))
            assert writer.flush(PATIENCE_S), "it holds up nobody else's blocks"
            for words in ("its beginning alone is kept", "--kv-disk-bytes"):
                assert words in str(writer.problem)
            assert store.has_all(keys, FULL) == [True] * 12 + [False] * 8
            assert read(store, long[11]) == long[11].payload
            disk.touch(long[:12])
        disk.clock.now_s += 1
        writer.submit(other.header, Copied(other.payload))
        assert writer.flush(PATIENCE_S)
        assert writer.problem is None
        num_left = disk.found(long)
        assert store.has_all(keys, FULL) == [True] * num_left + [False] * (20 - num_left)
        assert (num_left, disk.found([other])) == (11, 1)


def test_a_tail_stays_where_the_longer_one_is_left_out(make_disk: MakeDisk) -> None:
    disk = make_disk(12)
    long = conversation(1, 12)
    short, longer = (block_behind(long[-2].key, [7] * length) for length in (2, 3))
    with closing(disk.store) as store, writing(store) as writer:
        for block in (*long[:11], short):
            assert store.write([(block.header, block.payload)])
        disk.touch([short])
        writer.submit(longer.header, Copied(longer.payload), replaces=short.key)
        assert writer.flush(PATIENCE_S)
        assert "its beginning alone is kept" in str(writer.problem)
        assert [store.has(tail.key, FULL) for tail in (short, longer)] == [True, False]
