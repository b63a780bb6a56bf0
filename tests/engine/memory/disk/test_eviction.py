"""Room is held for what is written soon, beside what it is made from, or it is said why there is none."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.errors import StorageError
from tests.engine.memory.chains import FULL, Block
from tests.engine.memory.disk.small_disk import Disk, MakeDisk, conversation

pytestmark = pytest.mark.pure

NEW = conversation(3, 3)


def disk_with(make_disk: MakeDisk, num_blocks: int, *conversations: Sequence[Block]) -> Disk:
    disk = make_disk(num_blocks)
    for blocks in conversations:
        for block in blocks:
            assert disk.write(block)
    return disk


def test_what_is_longest_unused_goes_at_once_and_nothing_goes_for_what_is_written_then(
    make_disk: MakeDisk,
) -> None:
    old, used = conversation(1, 4), conversation(2, 4)
    disk = disk_with(make_disk, 8, old, used)
    disk.touch(used)
    with disk.room(NEW):
        assert (disk.found(old), disk.found(used)) == (1, 4), "a parent goes after its children"
        assert disk.write_all(NEW) == 3
        assert (disk.found(old), disk.found(used)) == (1, 4)


def test_what_others_are_made_from_stays_though_it_is_longest_unused(make_disk: MakeDisk) -> None:
    old, used = conversation(1, 4), conversation(2, 4)
    disk = disk_with(make_disk, 8, old, used)
    disk.touch(used)
    with disk.room(NEW, old):
        assert (disk.found(old), disk.found(used)) == (4, 1)
        disk.request(conversation(5, 4))
        assert disk.found(old) == 4
    disk.request(conversation(6, 8))
    assert disk.found(old) < 4, "it is held no longer"


def test_what_has_no_room_beside_its_sources_pushes_nothing_out(tmp_path: Path, make_disk: MakeDisk) -> None:
    blocks, others = conversation(1, 3), conversation(2, 2)
    disk = disk_with(make_disk, 5, blocks, others)
    with pytest.raises(StorageError, match="KVCHAT_KV_DISK_BYTES"), disk.room(NEW, blocks):
        raise AssertionError
    assert (disk.found(blocks), disk.found(others)) == (3, 2)
    assert list((tmp_path / "cache").glob("held/*")) == []


def test_what_is_kept_makes_no_room_and_is_told(make_disk: MakeDisk) -> None:
    blocks = conversation(1, 3)
    disk = disk_with(make_disk, 5, blocks)
    disk.keep(blocks)
    kept = f"{3 * disk.bytes_each / 1024:.1f} KiB"
    with pytest.raises(StorageError, match=f"pinned sessions keep {kept}"), disk.room(NEW):
        raise AssertionError
    assert disk.found(blocks) == 3
    with disk.room(NEW[:2], blocks):
        pass  # what others are made from counts once, kept or not


def test_damaged_blocks_that_were_set_aside_count(tmp_path: Path, make_disk: MakeDisk) -> None:
    blocks, damaged = conversation(1, 3), conversation(2, 2)
    disk = disk_with(make_disk, 8, blocks, damaged)
    for block in damaged:
        disk.store.set_aside(block.key, FULL)
    new = conversation(3, 4)
    with pytest.raises(StorageError, match="were set aside hold"), disk.room(new, blocks):
        raise AssertionError
    with disk.room(new[:3], blocks):
        assert disk.write_all(new[:3]) == 3
    files = [path for place in ("blocks", "quarantine") for path in (tmp_path / "cache" / place).rglob("*.*")]
    assert sum(path.stat().st_size for path in files) == 8 * disk.bytes_each


def test_what_was_not_written_leaves_its_room_and_no_row(make_disk: MakeDisk) -> None:
    blocks = conversation(1, 2)
    disk = disk_with(make_disk, 8, blocks)
    with disk.room(NEW):
        assert disk.write_all(NEW[:1]) == 1
        assert disk.store.total_usage().num_blocks == 5
        assert disk.found(NEW) == 1, "what is held is not there"
    assert disk.store.total_usage().num_blocks == 3
    disk.reopen()
    assert disk.found(NEW) == 1


def test_what_is_removed_by_name_goes_though_others_are_made_from_it(
    tmp_path: Path, make_disk: MakeDisk
) -> None:
    """Words that are deleted are gone, whoever is at work on them."""
    blocks = conversation(1, 3)
    disk = disk_with(make_disk, 8, blocks)
    with disk.room(NEW, blocks):
        admin = CacheAdmin(tmp_path / "cache")
        assert admin.collect(lambda block: block.key != blocks[-1].key).num_blocks == 1
        admin.close()
        assert disk.found(blocks) == 2


def test_what_may_not_be_written_today_pushes_nothing_out(make_disk: MakeDisk) -> None:
    blocks = conversation(1, 3)
    disk = disk_with(make_disk, 4, blocks)
    disk.store.daily_bytes = 4 * disk.bytes_each
    with pytest.raises(StorageError, match="of today"), disk.room(NEW):
        raise AssertionError
    assert disk.found(blocks) == 3
