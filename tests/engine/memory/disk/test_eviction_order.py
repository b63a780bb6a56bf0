"""Which blocks on disk make room: not those that are used again, by one scan or because a process ended."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.engine.api.ids import BlockKey
from kvchat.engine.cache.eviction import Eviction
from kvchat.engine.memory.disk.store import DiskStore
from tests.engine.memory.chains import FINGERPRINT, open_store
from tests.engine.memory.disk.small_disk import HastyFiles, MakeDisk, conversation, file_bytes

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("eviction", "least", "most"), [(Eviction.S3FIFO, 0.9, 1.0), (Eviction.LRU, 0.0, 0.0)]
)
def test_one_scan_of_a_long_document_leaves_what_is_used_again(
    make_disk: MakeDisk, eviction: Eviction, least: float, most: float
) -> None:
    """Ten times what the disk holds, read once; by age alone, as a control, nothing is left of five."""
    disk = make_disk(30, eviction)
    hot = [conversation(number, 5) for number in range(5)]
    for blocks in [*hot, *hot]:
        disk.request(blocks)
    disk.request(conversation(77, 300))
    share = sum(disk.found(blocks) for blocks in hot) / 25
    assert least <= share <= most


def test_what_comes_back_soon_after_it_went_is_not_flushed_again(make_disk: MakeDisk) -> None:
    disk = make_disk(10)
    hot = conversation(1, 5)
    disk.request(hot)
    disk.request(conversation(77, 40))
    assert disk.found(hot) == 0
    disk.request(hot)  # stored anew, and never used since
    disk.request(conversation(78, 40))
    assert disk.found(hot) == 5


def test_an_unused_pack_keeps_no_new_conversation_from_a_disk_of_what_is_used_again(
    make_disk: MakeDisk,
) -> None:
    disk = make_disk(20)
    pack, hot = conversation(1, 4), conversation(2, 16)
    disk.request(pack)
    disk.keep(pack)
    for _ in range(2):
        disk.request(hot)
    new = conversation(3, 2)
    disk.request(new)
    assert (disk.found(new), disk.found(pack), disk.found(hot)) == (2, 4, 14)


def test_a_new_conversation_finds_room_on_a_disk_of_a_few_blocks_that_are_all_used_again(
    make_disk: MakeDisk,
) -> None:
    """A block with each of its requests, so that it is there whole after a bounded number of them."""
    disk = make_disk(5)
    hot, new = conversation(1, 5), conversation(2, 3)
    for _ in range(3):
        disk.request(hot)
    found = [disk.request(new) for _ in range(4)]
    assert found == [0, 1, 2, 3]
    assert disk.found(hot) == 2, "of what was used longest ago the end went, and its beginning is of use"


# What is being written while others make room for it


class WatchingFiles(HastyFiles):
    """Notes which rows are unsettled whenever a file is begun."""

    def __init__(self) -> None:
        self.unsettled: list[set[BlockKey]] = []
        self.store: DiskStore | None = None

    def create(self, path: Path) -> int:
        assert self.store is not None
        self.unsettled.append({BlockKey(name) for _, name, _ in self.store._index.names()[1]})
        return super().create(path)


def test_a_block_has_its_row_before_its_file_also_where_others_made_room_for_it(tmp_path: Path) -> None:
    """Else a writer that is killed leaves a file behind that nobody finds without looking at all."""
    files, blocks = WatchingFiles(), conversation(1, 3) + conversation(2, 3)
    limit_bytes = 3 * file_bytes(tmp_path / "sized")
    with closing(open_store(tmp_path / "cache", files=files, limit_bytes=limit_bytes)) as files.store:
        for block in blocks:
            assert files.store.write([(block.header, block.payload)])
    assert files.unsettled == [{block.key} for block in blocks]


# An index that an earlier version has left

OLD_TABLES = """
CREATE TABLE blocks (fingerprint BLOB NOT NULL, key BLOB NOT NULL, grp INTEGER NOT NULL, parent BLOB NOT NULL,
    num_tokens INTEGER NOT NULL, block_size INTEGER NOT NULL, token_ids BLOB NOT NULL, bytes INTEGER NOT NULL,
    last_used REAL NOT NULL, writer TEXT, PRIMARY KEY (fingerprint, key, grp)) WITHOUT ROWID;
CREATE TABLE totals (fingerprint BLOB PRIMARY KEY, num_blocks INTEGER NOT NULL, num_tails INTEGER NOT NULL,
    bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE writers (id TEXT PRIMARY KEY, boot TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE written (day INTEGER PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
"""


def test_the_index_of_an_earlier_version_is_filled_again_from_the_files(
    tmp_path: Path, make_disk: MakeDisk
) -> None:
    disk = make_disk(8)
    hot = conversation(1, 5)
    disk.request(hot)
    disk.store.close()
    index = tmp_path / "cache/index.db"
    for path in index.parent.glob("index.db*"):
        path.unlink()
    with closing(sqlite3.connect(index)) as connection:
        connection.executescript(OLD_TABLES)
        connection.execute("INSERT INTO totals VALUES (?, 99, 99, 99)", (FINGERPRINT,))
        connection.execute("INSERT INTO written VALUES (700000, 123456)")
        connection.commit()
    disk.reopen()
    assert disk.found(hot) == 5
    assert (disk.store.usage().num_blocks, disk.store._index.num_unproven()) == (5, 5)
    assert disk.store._index.written(700000).today == 123456
    disk.request(hot)
    disk.request(conversation(77, 40))
    assert disk.found(hot) == 5
