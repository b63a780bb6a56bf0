"""The order in which blocks go from disk, beside damaged files, other processes and writes that fail."""

from contextlib import closing
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.block_file import file_bytes
from kvchat.errors import StorageError
from tests.engine.memory.chains import (
    BLOCK_SIZE,
    FULL,
    SLIDING,
    block_behind,
    chain,
    open_store,
    path_of,
    write_all,
)
from tests.engine.memory.disk.small_disk import MakeDisk, conversation

pytestmark = pytest.mark.pure


def test_kept_blocks_of_two_groups_do_not_end_the_search_for_what_may_go(make_disk: MakeDisk) -> None:
    disk = make_disk(12)
    kept = [conversation(number, 1)[0] for number in range(4)]
    for block in kept:
        disk.write(block)
        disk.write(block_behind(block.header.parent, list(block.header.token_ids), SLIDING))
    disk.request(conversation(8, 3))
    disk.keep(kept)
    order = disk.store._directory.order
    assert [leaf.key for leaf in order.due(1)] == [conversation(8, 3)[-1].key]


def test_a_damaged_block_that_was_set_aside_lets_no_scan_push_out_what_is_used_again(
    make_disk: MakeDisk,
) -> None:
    disk = make_disk(30)
    hot = [conversation(number, 5) for number in range(5)]
    (damaged,) = conversation(66, 1)
    for blocks in [*hot, *hot, [damaged]]:
        disk.request(blocks)
    disk.store.set_aside(damaged.key, FULL)
    disk.request(conversation(77, 100))
    assert sum(disk.found(blocks) for blocks in hot) >= 23
    assert disk.store.total_usage().num_bytes <= 29 * disk.bytes_each


def test_where_there_is_no_room_it_is_said_what_damaged_blocks_hold_and_how_they_go(
    make_disk: MakeDisk,
) -> None:
    disk = make_disk(10)
    pack, (damaged,) = conversation(1, 9), conversation(2, 1)
    disk.request([*pack, damaged])
    disk.keep(pack)
    disk.store.set_aside(damaged.key, FULL)
    assert not disk.write(conversation(3, 1)[0])
    assert "set aside" in (disk.store.shortage or "")
    assert "`kvchat cache gc`" in (disk.store.shortage or "")


def test_what_another_process_wrote_meanwhile_is_refused_no_longer_nor_what_is_behind_it(
    tmp_path: Path,
    make_disk: MakeDisk,
) -> None:
    disk = make_disk(10)
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


def test_that_a_block_came_back_is_known_also_after_its_write_has_failed(
    tmp_path: Path, make_disk: MakeDisk
) -> None:
    disk = make_disk(10)
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


@pytest.mark.parametrize("num_ids", [1, 3, BLOCK_SIZE])
def test_a_block_is_weighed_by_what_its_file_takes_before_a_byte_of_it_is_looked_at(
    tmp_path: Path, num_ids: int
) -> None:
    (block,) = chain(list(range(num_ids)))
    with closing(open_store(tmp_path)) as store:
        write_all(store, [block])
        identity = store._identity(block.header)
    assert file_bytes(identity) == path_of(tmp_path, block).stat().st_size
