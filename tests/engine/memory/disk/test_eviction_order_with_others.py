"""The order in which blocks go from disk, beside damaged files, other processes and writes that fail."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.engine.memory.chains import FULL, open_store, write_all
from tests.engine.memory.disk.small_disk import MakeDisk, conversation

pytestmark = pytest.mark.pure


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
    tmp_path: Path, make_disk: MakeDisk
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
