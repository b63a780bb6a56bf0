"""Room for what is written soon is made at one time: as much as is asked for, or told that there is none."""

from pathlib import Path

import pytest

from kvchat.errors import StorageError
from tests.engine.memory.chains import chain, path_of, read
from tests.engine.memory.small_disk import Disk, conversation

pytestmark = pytest.mark.pure


def test_what_is_longest_unused_goes_at_once_and_nothing_goes_for_what_is_written_then(
    tmp_path: Path,
) -> None:
    disk = Disk(tmp_path, 8)
    old, used = conversation(1, 4), conversation(2, 4)
    for block in (*old, *used):
        assert disk.write(block)
    disk.touch(used)
    assert disk.store.make_room(3 * disk.bytes_each)
    assert (disk.found(old), disk.found(used)) == (1, 4), "a parent goes after its children"
    new = [(block.header, block.payload) for block in conversation(3, 3)]
    assert disk.store.write_all(new, is_wanted=True) == 3
    assert (disk.found(old), disk.found(used)) == (1, 4)


def test_where_there_is_room_nothing_goes(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 8)
    blocks = conversation(1, 4)
    for block in blocks:
        disk.write(block)
    assert disk.store.make_room(4 * disk.bytes_each)
    assert disk.found(blocks) == 4


def test_what_finds_no_room_in_an_empty_disk_pushes_nothing_out(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 4)
    blocks = conversation(1, 3)
    for block in blocks:
        disk.write(block)
    assert not disk.store.make_room(4 * disk.bytes_each + 1)
    assert disk.found(blocks) == 3


def test_what_is_kept_makes_no_room(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 4)
    blocks = conversation(1, 3)
    for block in blocks:
        disk.write(block)
    disk.keep(blocks)
    assert not disk.store.make_room(2 * disk.bytes_each)
    assert disk.found(blocks) == 3


def test_what_may_not_be_written_today_pushes_nothing_out(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 4)
    blocks = conversation(1, 3)
    for block in blocks:
        disk.write(block)
    disk.store.daily_bytes = 4 * disk.bytes_each
    with pytest.raises(StorageError, match="of today"):
        disk.store.make_room(2 * disk.bytes_each)
    assert disk.found(blocks) == 3


def test_without_a_limit_there_is_room(tmp_path: Path) -> None:
    disk = Disk(tmp_path, 4)
    (block,) = chain([1, 2, 3, 4])
    disk.write(block)
    disk.store.limit_bytes = None
    assert disk.store.make_room(1 << 50)
    assert read(disk.store, block) == block.payload
    assert path_of(tmp_path / "cache", block).is_file()
