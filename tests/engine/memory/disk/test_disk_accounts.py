"""What the store writes is counted, limited by the day, and no clock can make it lose its order."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.memory.disk.io import SystemFiles
from kvchat.errors import BlockDamaged, StorageError
from tests.engine.memory.chains import (
    FULL,
    OTHER_FINGERPRINT,
    block_behind,
    chain,
    open_store,
    path_of,
    read,
    write_all,
)
from tests.engine.memory.disk.recorded_files import RecordingFiles
from tests.engine.memory.disk.small_disk import file_bytes
from tests.hand_clock import HandClock

pytestmark = pytest.mark.pure

DAY_S = 86_400.0
YEAR_S = 365 * DAY_S
ROOTS = [block_behind(chain([0, 0, 0, 0])[0].header.parent, [n, 0, 0, 0]) for n in range(24)]
KEYS = [block.key for block in ROOTS]


def test_the_bytes_written_are_those_that_went_through_the_seam(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    blocks = chain(list(range(12)))
    store = open_store(tmp_path, files=files)
    write_all(store, blocks)
    assert not store.write([(blocks[0].header, blocks[0].payload)])
    store.remove(blocks[2].key, FULL)
    assert store.written().today == store.written().total == files.num_written_bytes


def test_the_count_survives_a_restart_and_other_models_write_into_it(tmp_path: Path) -> None:
    clock = HandClock()
    store = open_store(tmp_path, clock=clock)
    write_all(store, chain([1, 2, 3, 4]))
    first = store.written().total
    store.close()
    clock.now_s += DAY_S
    other = open_store(tmp_path, OTHER_FINGERPRINT, clock=clock)
    assert (other.written().today, other.written().total) == (0, first)
    write_all(other, chain([1, 2, 3, 4], fingerprint=OTHER_FINGERPRINT))
    assert (other.written().today, other.written().total) == (first, 2 * first)
    other.close()
    admin = CacheAdmin(tmp_path)
    assert admin.written().total == 2 * first
    admin.close()


def test_a_day_s_limit_is_never_exceeded_and_ends_with_the_day(tmp_path: Path) -> None:
    clock, blocks = HandClock(), chain(list(range(16)))
    store = open_store(tmp_path, clock=clock, daily_bytes=2000)
    write_all(store, blocks[:2])
    with pytest.raises(StorageError, match=r"tomorrow.*--kv-disk-daily-bytes"):
        store.write([(blocks[2].header, blocks[2].payload)])
    assert store.written().today <= 2000
    assert not store.write([(blocks[0].header, blocks[0].payload)])  # what is there costs nothing
    clock.now_s += DAY_S
    assert store.write([(blocks[2].header, blocks[2].payload)])


def test_the_limit_holds_at_every_moment_of_a_write(tmp_path: Path) -> None:
    """Also while the bytes lie under a temporary name, and with what was set aside."""
    (sample,) = chain([1, 2, 3, 4])
    limit_bytes = 4 * file_bytes(tmp_path / "measure") + 10
    cache_dir = tmp_path / "cache"
    most: list[int] = []

    class WatchedFiles(SystemFiles):
        def sync(self, descriptor: int) -> None:
            super().sync(descriptor)
            kept = [*(cache_dir / "blocks").rglob("*.*"), *(cache_dir / "quarantine").rglob("*.*")]
            most.append(sum(path.stat().st_size for path in kept))

    store = open_store(cache_dir, files=WatchedFiles(), limit_bytes=limit_bytes)
    write_all(store, [sample])
    path_of(cache_dir, sample).write_bytes(bytes(path_of(cache_dir, sample).stat().st_size))
    with pytest.raises(BlockDamaged):
        read(store, sample)
    for block in ROOTS[:12]:
        assert store.write([(block.header, block.payload)])
    assert len(most) == 13
    assert limit_bytes / 2 < max(most) <= limit_bytes


def test_files_from_the_future_are_not_kept_for_ever(tmp_path: Path) -> None:
    """Found again after the index was lost, a file whose time is to come counts as used now."""
    clock = HandClock()
    store = open_store(tmp_path, clock=clock)
    write_all(store, ROOTS[:2])
    store.close()
    (tmp_path / "index.db").unlink()
    clock.now_s = 2_000_000_000.0
    for block in ROOTS[:2]:
        os.utime(path_of(tmp_path, block), (4_000_000_000.0,) * 2)
    store = open_store(tmp_path, clock=clock, limit_bytes=2 * path_of(tmp_path, ROOTS[0]).stat().st_size)
    clock.now_s += 60
    store.write([(ROOTS[2].header, ROOTS[2].payload)])
    assert store.has(ROOTS[2].key, FULL)
    clock.now_s += 60
    assert store._index.newest_s() < 2_000_001_000.0


@pytest.mark.parametrize("ahead_s", [20 * YEAR_S, 7000 * YEAR_S])
def test_after_a_clock_that_ran_ahead_what_was_written_first_goes_first(
    tmp_path: Path, ahead_s: float
) -> None:
    """All moments were one and the same until that date: what went was chance."""
    clock = HandClock()
    with closing(open_store(tmp_path, clock=clock)) as store:
        clock.now_s += ahead_s
        write_all(store, ROOTS[:1])
        each_bytes = store.total_usage().num_bytes
    clock.now_s -= ahead_s
    with closing(open_store(tmp_path, clock=clock, limit_bytes=4 * each_bytes)) as store:
        for number in range(1, len(ROOTS)):
            clock.now_s += 1
            write_all(store, [ROOTS[number]])
            there = [KEYS.index(key) for key in KEYS if store.has(key, FULL)]
            assert there == list(range(max(0, number - 3), number + 1))


def test_after_a_clock_that_ran_ahead_what_was_used_first_goes_first(tmp_path: Path) -> None:
    clock = HandClock()
    with closing(open_store(tmp_path, clock=clock)) as store:
        write_all(store, ROOTS[:11])
        each_bytes = store.total_usage().num_bytes // 11
        clock.now_s += 20 * YEAR_S
        write_all(store, ROOTS[11:12])
    clock.now_s -= 20 * YEAR_S
    order = [7, 3, 9, 0, 5, 10, 1, 8, 2, 6, 4, 11]
    with closing(open_store(tmp_path, clock=clock, limit_bytes=12 * each_bytes)) as store:
        for number in order:
            clock.now_s += 1
            store.touch([KEYS[number]])
        store.flush_touched()
        found = store._index.oldest_leaves(12, is_proven=None)
    assert [KEYS.index(leaf.key) for leaf in found] == order
