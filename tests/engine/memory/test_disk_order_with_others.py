"""The order in which blocks go from disk, beside damaged files, other processes and writes that fail."""

from contextlib import closing
from pathlib import Path

import pytest

from kvchat.errors import StorageError
from tests.engine.memory.chains import FULL, open_store, write_all
from tests.engine.memory.small_disk import Disk, conversation

pytestmark = pytest.mark.pure


def test_a_damaged_block_that_was_set_aside_lets_no_scan_push_out_what_is_used_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 30)
    hot = [conversation(number, 5) for number in range(5)]
    (damaged,) = conversation(66, 1)
    for blocks in [*hot, *hot, [damaged]]:
        disk.request(blocks)
    disk.store.set_aside(damaged.key, FULL)
    disk.request(conversation(77, 100))
    assert sum(disk.found(blocks) for blocks in hot) >= 23
    assert disk.store.total_usage().num_bytes <= 29 * disk.bytes_each
    disk.store.close()


def test_what_another_process_wrote_meanwhile_is_refused_no_longer_nor_what_is_behind_it(
    tmp_path: Path,
) -> None:
    disk = Disk(tmp_path, 10)
    for _ in range(2):
        disk.request(conversation(1, 9))
    scan = conversation(77, 4)
    disk.request(scan)
    num_there = disk.found(scan)
    refused, behind = scan[num_there : num_there + 2]
    assert not disk.write(refused)
    with closing(open_store(tmp_path / "cache", clock=disk.clock)) as other:
        write_all(other, [*conversation(78, 1), refused])
    assert not disk.write(refused)  # it is there
    assert disk.write(behind)
    disk.store.close()


def test_that_a_block_came_back_is_known_also_after_its_write_has_failed(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 10)
    hot = conversation(1, 5)
    disk.request(hot)
    disk.request(conversation(77, 40))
    disk.request(hot[:4])
    unreadable = tmp_path / "cache/kept/pack.keep"
    unreadable.mkdir(parents=True)
    with pytest.raises(StorageError, match="says which blocks stay"):
        disk.write(hot[4])
    unreadable.rmdir()
    disk.request(hot)
    disk.request(conversation(78, 40))
    assert disk.found(hot) == 5
    disk.store.close()
