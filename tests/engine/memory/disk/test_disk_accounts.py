"""What the store writes is counted, limited by the day, and no clock can make it lose its order."""

import os
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.catalog import BlockCatalog
from kvchat.engine.memory.disk.io import SystemFiles
from kvchat.engine.memory.disk.writer import BlockWriter
from kvchat.errors import BlockDamaged, StorageError
from tests.engine.memory.chains import (
    FULL,
    OTHER_FINGERPRINT,
    Clock,
    Copied,
    block_behind,
    chain,
    open_store,
    path_of,
    put_blocks,
    read,
    write_all,
)
from tests.engine.memory.disk.recorded_files import RecordingFiles
from tests.engine.memory.disk.small_disk import file_bytes
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.pure

DAY_S = 86_400.0


def test_the_bytes_written_are_those_that_went_through_the_seam(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    blocks = chain(list(range(12)))
    store = open_store(tmp_path, files=files)
    write_all(store, blocks)
    assert not store.write([(blocks[0].header, blocks[0].payload)])
    store.remove(blocks[2].key, FULL)
    assert store.written().today == store.written().total == files.num_written_bytes
    store.close()


def test_the_count_survives_a_restart_and_other_models_write_into_it(tmp_path: Path) -> None:
    clock = Clock()
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
    catalog = BlockCatalog(tmp_path)
    assert catalog.written().total == 2 * first
    catalog.close()


def test_a_day_s_limit_is_never_exceeded_and_ends_with_the_day(tmp_path: Path) -> None:
    clock, blocks = Clock(), chain(list(range(16)))
    store = open_store(tmp_path, clock=clock, daily_bytes=2000)
    write_all(store, blocks[:2])
    with pytest.raises(StorageError, match=r"tomorrow.*--kv-disk-daily-bytes"):
        store.write([(blocks[2].header, blocks[2].payload)])
    assert store.written().today <= 2000
    assert not store.write([(blocks[0].header, blocks[0].payload)])  # what is there costs nothing
    clock.now_s += DAY_S
    assert store.write([(blocks[2].header, blocks[2].payload)])
    store.close()


def test_a_writer_tells_of_the_day_s_limit_and_holds_nobody_up(tmp_path: Path) -> None:
    store = open_store(tmp_path, daily_bytes=10)
    writer = BlockWriter(store, max_bytes=1 << 20)
    (block,) = chain([1, 2, 3, 4])
    assert writer.submit(block.header, Copied(block.payload))
    assert not writer.flush(PATIENCE_S)
    assert writer.problem is not None
    assert "tomorrow" in writer.problem
    writer.close()
    store.close()


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
    for number in range(12):
        block = block_behind(sample.header.parent, [number, 0, 0, 0])
        assert store.write([(block.header, block.payload)])
    assert len(most) == 13
    assert limit_bytes / 2 < max(most) <= limit_bytes
    store.close()


def test_a_growing_conversation_writes_new_blocks_and_its_tail_only(tmp_path: Path) -> None:
    """Two hundred blocks are there already; the turn behind them costs what it adds."""
    ids = list(range(4 * 200))
    put_blocks(tmp_path, chain(ids))
    files = RecordingFiles(tmp_path)
    store = open_store(tmp_path, files=files)
    for block in chain([*ids, *range(10)]):
        store.write([(block.header, block.payload)])
    new = [*chain([*ids, *range(10)])[200:]]
    assert len(new) == 3
    assert files.num_written_bytes == sum(path_of(tmp_path, block).stat().st_size for block in new)
    store.close()


@pytest.mark.parametrize("jump_s", [-10 * 365 * DAY_S, -5.0, 10 * 365 * DAY_S])
def test_a_clock_that_jumps_changes_no_order_of_use(tmp_path: Path, jump_s: float) -> None:
    """What was used last stays longest, also where the clock was set back in between."""
    clock = Clock()
    roots = [block_behind(chain([0, 0, 0, 0])[0].header.parent, [n, 0, 0, 0]) for n in range(4)]
    num_bytes = file_bytes(tmp_path / "measure")
    store = open_store(tmp_path / "cache", clock=clock, limit_bytes=3 * num_bytes)
    clock.now_s += 20 * 365 * DAY_S
    for block in roots[:3]:
        clock.now_s += 1
        store.write([(block.header, block.payload)])
    clock.now_s += jump_s
    store.touch([roots[0].key])
    clock.now_s += 1
    store.write([(roots[3].header, roots[3].payload)])
    assert store.has_all([block.key for block in roots], FULL) == [True, False, True, True]
    store.close()


def test_files_from_the_future_are_not_kept_for_ever(tmp_path: Path) -> None:
    """Found again after the index was lost, a file whose time is to come counts as used now."""
    clock = Clock()
    roots = [block_behind(chain([0, 0, 0, 0])[0].header.parent, [n, 0, 0, 0]) for n in range(3)]
    store = open_store(tmp_path, clock=clock)
    write_all(store, roots[:2])
    store.close()
    (tmp_path / "index.db").unlink()
    clock.now_s = 2_000_000_000.0
    for block in roots[:2]:
        os.utime(path_of(tmp_path, block), (4_000_000_000.0,) * 2)
    store = open_store(tmp_path, clock=clock, limit_bytes=2 * path_of(tmp_path, roots[0]).stat().st_size)
    clock.now_s += 60
    store.write([(roots[2].header, roots[2].payload)])
    assert store.has(roots[2].key, FULL)
    clock.now_s += 60
    assert store._index.newest_s() < 2_000_001_000.0
    store.close()
