"""A damaged byte in the index or its log, or a file that ends early: never a wrong block, and it goes on."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.memory.disk.store import DiskStore
from tests.damage import flipped
from tests.engine.memory.chains import SLIDING, chain, open_store, put_blocks, read_if_whole, write_all

pytestmark = [pytest.mark.pure, pytest.mark.long]

BLOCKS = [*chain(list(range(14))), *chain([0, 1, 2, 3, 9, 9, 9], SLIDING), *chain([5, 5, 5, 5, 5])]
NEW = chain([7, 7, 7, 7, 7])
INDEX, LOG = Path("index.db"), Path("index.db-wal")
NUM_SAFE = 7
"""Of the blocks: those that the index has without its log."""
NUM_PARTS = 8
GOES_ON = 7
"""Where every byte is damaged: behind so many of them each the store is written to and looked through too."""
Files = Mapping[Path, bytes]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A cache directory after a process was killed: the newest of the index is in its log alone."""
    place = tmp_path_factory.mktemp("cache")
    put_blocks(place, BLOCKS[:NUM_SAFE])
    store = open_store(place)
    write_all(store, BLOCKS[NUM_SAFE:])
    found = {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    store.close()
    return {path: data for path, data in found.items() if path.suffix != ".lock" and "shm" not in path.name}


def put(place: Path, files: Files) -> None:
    shutil.rmtree(place, ignore_errors=True)
    for path, data in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(data)


def look(store: DiskStore) -> None:
    """Whatever the index says, a block is right or not there."""
    for block in BLOCKS:
        assert read_if_whole(store, block) in (block.payload, None)
        for child in store.children(block.header.parent):
            assert child.token_ids in {one.header.token_ids for one in BLOCKS}
        store.nearest(block.header.parent, block.header.token_ids, 3)


def check(place: Path) -> list[Path]:
    """Looking at the files finds all blocks again, whatever the index says.

    Returns: what is left once all blocks are collected.
    """
    with closing(open_store(place, limit_bytes=1 << 20)) as store:
        look(store)
        for block in (*NEW, *BLOCKS):
            store.write([(block.header, block.payload)])
        assert all(read_if_whole(store, block) == block.payload for block in (*NEW, *BLOCKS))
        store.rebuild()
        for block in (*NEW, *BLOCKS):
            assert store.has(block.key, block.header.group)
        assert store.usage().num_blocks == len(BLOCKS) + len(NEW)
    with closing(CacheAdmin(place)) as admin:
        admin.collect(lambda block: False)
    return list((place / "blocks").rglob("*"))


@pytest.mark.parametrize("at", range(16, 24))
def test_a_head_that_asks_for_another_sqlite_is_damage_like_any_other(
    quick_path: Path, files: Files, at: int
) -> None:
    """A format of the future would be read for ever and never written."""
    data = files[INDEX]
    put(quick_path / "cache", {**files, INDEX: flipped(data, at, 0x80)})
    assert check(quick_path / "cache") == []


def flips(data: bytes, step: int) -> Iterator[bytes]:
    random = Random(step)
    for start in range(0, len(data), step):
        at = min(start + random.randrange(step), len(data) - 1)
        yield flipped(data, at, (1 << random.randrange(8)))


@pytest.mark.parametrize("name", [INDEX, LOG], ids=["index", "log"])
def test_a_byte_flipped_anywhere_in_the_index_yields_no_wrong_block(
    quick_path: Path, files: Files, name: Path
) -> None:
    """Trap 24: the files are the truth, and the index a hint."""
    for data in flips(files[name], 3001):
        put(quick_path / "cache", {**files, name: data})
        assert check(quick_path / "cache") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [INDEX, LOG], ids=["index", "log"])
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_single_byte_of_the_index_may_be_flipped(
    quick_path: Path, files: Files, name: Path, part: int
) -> None:
    """Trap 24: none is left out; in parts, which may run side by side."""
    for at, data in islice(enumerate(flips(files[name], 1)), part, None, NUM_PARTS):
        put(quick_path / "cache", {**files, name: data})
        if at % GOES_ON == 0:
            assert check(quick_path / "cache") == []
        else:
            with closing(open_store(quick_path / "cache", limit_bytes=1 << 20)) as store:
                look(store)


@pytest.mark.parametrize("name", [INDEX, LOG], ids=["index", "log"])
@pytest.mark.parametrize("step", [4999, pytest.param(61, marks=pytest.mark.slow)])
def test_an_index_that_ends_early_yields_no_wrong_block(
    quick_path: Path, files: Files, name: Path, step: int
) -> None:
    for length in (0, 1, *range(17, len(files[name]), step)):
        put(quick_path / "cache", {**files, name: files[name][:length]})
        assert check(quick_path / "cache") == []


def empty_tree(index: Path, name: str) -> None:
    """Leave a tree of the index without entries; SQLite finds nothing through it, and says nothing."""
    with closing(sqlite3.connect(index)) as connection:
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    with index.open("r+b") as file:
        file.seek((root - 1) * page_bytes)
        file.write(bytes([10, 0, 0, 0, 0, *page_bytes.to_bytes(2, "big"), 0]) + bytes(page_bytes - 8))


def cut_token_ids(index: Path) -> None:
    """Leave rows that no block can have, as a damaged disk may."""
    with closing(sqlite3.connect(index)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE blocks SET token_ids = substr(token_ids, 1, 3)")
        connection.commit()


@pytest.mark.parametrize(
    "damage",
    [partial(empty_tree, name="blocks_by_parent"), partial(empty_tree, name="blocks_by_age"), cut_token_ids],
)
def test_a_tree_without_entries_and_rows_that_no_block_can_have_are_found_when_all_files_are_looked_at(
    quick_path: Path, damage: Callable[[Path], None]
) -> None:
    """What only comparing the trees with each other tells."""
    assert check_after(quick_path, damage) == 0


def test_rows_that_no_block_can_have_say_nothing_until_then(quick_path: Path) -> None:
    """Trap 24: the index is a hint, and a hint that makes no sense is none."""
    put_blocks(quick_path, BLOCKS)
    cut_token_ids(quick_path / INDEX)
    with closing(open_store(quick_path)) as store:
        for block in BLOCKS:
            assert store.children(block.header.parent) == ()
            assert store.nearest(block.header.parent, block.header.token_ids, 3) == ()
            assert read_if_whole(store, block) in (block.payload, None)


def check_after(place: Path, damage: Callable[[Path], None]) -> int:
    """Every block is found through every tree once the index was damaged and all files were looked at.

    Returns: how many are left under a limit that none fits in.
    """
    put_blocks(place, BLOCKS)
    damage(place / INDEX)
    with closing(open_store(place)) as store:
        store.rebuild()
        assert store.usage().num_blocks == len(BLOCKS)
        for block in BLOCKS:
            assert block.key in {child.key for child in store.children(block.header.parent)}
            assert block.key in {near.key for near in store.nearest(block.header.parent, (), len(BLOCKS))}
            assert read_if_whole(store, block) == block.payload
    with closing(open_store(place, limit_bytes=1)) as store:  # the oldest go first, and all go
        num_left = store.usage().num_blocks
    assert not list((place / "blocks").rglob("*.safetensors"))
    return num_left
