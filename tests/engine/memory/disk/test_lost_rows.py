"""What the index says of block files and what is there come to agree again, whichever of them is lost."""

import sqlite3
from pathlib import Path
from random import Random

import pytest

from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import BlockMissing
from tests.engine.memory.chains import (
    FULL,
    SLIDING,
    chain,
    lose_row,
    open_store,
    path_of,
    put_blocks,
    read,
    write_all,
)

pytestmark = pytest.mark.pure


def test_a_row_without_a_file_is_a_miss_and_goes(tmp_path: Path, store: DiskStore) -> None:
    """Trap 22: announced by the index, gone at load."""
    (block,) = chain([1, 2, 3, 4])
    write_all(store, [block])
    path_of(tmp_path, block).unlink()
    assert not store.has(block.key, FULL)
    assert store.has_all([block.key], FULL) == [False]
    with pytest.raises(BlockMissing):
        read(store, block)
    assert store.children(block.header.parent) == ()
    assert store.usage().num_bytes == 0
    assert store.write([(block.header, block.payload)])


def test_rows_whose_files_are_gone_say_nothing_and_go_when_all_files_are_looked_at(tmp_path: Path) -> None:
    blocks = chain(list(range(8)))
    put_blocks(tmp_path, blocks)
    path_of(tmp_path, blocks[1]).unlink()
    store = open_store(tmp_path)
    assert store.children(blocks[0].key) == ()
    store.rebuild()
    assert store.usage().num_blocks == 1
    store.close()


def test_losing_the_index_loses_nothing(tmp_path: Path) -> None:
    """Trap 24."""
    blocks = chain(list(range(10))) + chain(list(range(10)), SLIDING)
    store = open_store(tmp_path)
    write_all(store, blocks)
    before = store.usage(), store.children(blocks[0].key)
    store.close()
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)

    store = open_store(tmp_path)
    assert (store.usage(), store.children(blocks[0].key)) == before
    assert [read(store, block) for block in blocks] == [block.payload for block in blocks]
    store.close()


@pytest.mark.parametrize("junk", [b"", b"no database", b"SQLite format 3\x00" + b"\xff" * 4096])
def test_an_index_that_is_no_database_is_made_again(tmp_path: Path, junk: bytes) -> None:
    blocks = chain(list(range(8)))
    put_blocks(tmp_path, blocks)
    (tmp_path / "index.db").write_bytes(junk)

    store = open_store(tmp_path)
    assert store.has_all([block.key for block in blocks], FULL) == [True, True]
    store.close()


def test_an_index_damaged_while_open_costs_time_only(tmp_path: Path, store: DiskStore) -> None:
    blocks = chain(list(range(12)))
    write_all(store, blocks[:2])
    with sqlite3.connect(tmp_path / "index.db") as connection:
        connection.execute("DROP TABLE blocks")
    connection.close()
    assert not store.has(blocks[0].key, FULL)
    assert store.has_all([block.key for block in blocks], FULL) == [True, True, False]
    assert read(store, blocks[0]) == blocks[0].payload
    assert store.write([(blocks[2].header, blocks[2].payload)])
    assert store.has_all([block.key for block in blocks], FULL) == [True] * 3


def test_an_index_damaged_anywhere_is_survived(quick_path: Path) -> None:
    blocks = chain(list(range(40)))
    put_blocks(quick_path, blocks)
    index = quick_path / "index.db"
    whole = index.read_bytes()
    random = Random(0)
    for _ in range(80):
        start, num_bytes = random.randrange(len(whole)), random.choice([1, 8, 64, 512])
        junk = random.choice([bytes(num_bytes), random.randbytes(num_bytes), b"\xff" * num_bytes])
        index.write_bytes((whole[:start] + junk + whole[start + num_bytes :])[: len(whole)])
        store = open_store(quick_path)
        store.children(blocks[0].key)
        store.has_all([block.key for block in blocks], FULL)
        store.rebuild()  # a row that was changed without a trace is found when every file is looked at
        assert store.has_all([block.key for block in blocks], FULL) == [True] * 10
        assert [read(store, block) for block in blocks] == [block.payload for block in blocks]
        assert not store.write([(blocks[0].header, blocks[0].payload)])
        store.close()


def test_a_file_whose_row_was_lost_is_found_when_it_is_written_again(
    tmp_path: Path, store: DiskStore
) -> None:
    (block,) = chain([1, 2, 3, 4])
    write_all(store, [block])
    lose_row(store, tmp_path, block)
    assert not store.has(block.key, FULL)
    assert not store.write([(block.header, block.payload)])
    assert store.has(block.key, FULL)
    assert store.usage().num_bytes == path_of(tmp_path, block).stat().st_size


def test_a_damaged_file_without_a_row_does_not_stand_in_the_way(tmp_path: Path, store: DiskStore) -> None:
    (block,) = chain([1, 2, 3, 4])
    write_all(store, [block])
    lose_row(store, tmp_path, block)
    path_of(tmp_path, block).write_bytes(b"torn")
    assert store.write([(block.header, block.payload)])
    assert read(store, block) == block.payload
