"""The disk tier gives back exactly what was written, or says that it cannot."""

import stat
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
import xxhash
from safetensors import safe_open

from kvchat.engine.cache.prefix_matcher import common_run
from kvchat.engine.cache.slow_tiers import TierNode
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import BlockDamaged, BlockMissing, StorageError
from tests.engine.memory.chains import (
    BLOCK_SIZE,
    FULL,
    OTHER_FINGERPRINT,
    Block,
    block_behind,
    chain,
    open_store,
    path_of,
    put_blocks,
    read,
    write_all,
)
from tests.engine.memory.disk.small_disk import file_bytes
from tests.hand_clock import HandClock

pytestmark = pytest.mark.pure


def test_the_safetensors_library_reads_the_files(tmp_path: Path, store: DiskStore) -> None:
    (block,) = chain([1, 2, 3, 4])
    write_all(store, [block])
    with safe_open(path_of(tmp_path, block), "numpy") as file:
        keys, values = file.get_tensor("layers.0.k"), file.get_tensor("layers.0.v")
        metadata = file.metadata()
    assert keys.shape == (2, BLOCK_SIZE, 2)
    assert values.shape == (2, BLOCK_SIZE, 3)
    assert keys.tobytes() + values.tobytes() == block.payload
    assert metadata["format"] == "kvchat.block.v1"
    assert metadata["key"] == block.key.hex()
    assert metadata["block_size"] == str(BLOCK_SIZE)


def test_the_checksum_is_over_the_header_without_it_and_the_payload(tmp_path: Path, store: DiskStore) -> None:
    """Trap 6: anyone can check a file without knowing what it should hold."""
    (block,) = chain([1, 2, 3, 4])
    write_all(store, [block])
    data = path_of(tmp_path, block).read_bytes()
    start = data.index(b'"xxh3":"') + 8
    checksum, blank = data[start : start + 32], data[:start] + b"0" * 32 + data[start + 32 :]
    assert xxhash.xxh3_128_hexdigest(blank).encode() == checksum


def test_has_all_answers_for_chains_longer_than_one_query(store: DiskStore) -> None:
    blocks = chain(list(range(2000 * BLOCK_SIZE)))
    write_all(store, blocks[:3] + blocks[-2:])
    found = store.has_all([block.key for block in blocks], FULL)
    assert found == [True] * 3 + [False] * 1995 + [True] * 2


def test_a_key_that_is_there_keeps_its_bytes(store: DiskStore) -> None:
    """Trap 24: recomputed bytes may differ in the last bit; the first ones stay."""
    (block,) = chain([1, 2, 3, 4])
    write_all(store, [block])
    assert not store.write([(block.header, bytes(len(block.payload)))])
    assert read(store, block) == block.payload


def test_other_weights_never_see_the_blocks(tmp_path: Path) -> None:
    """Traps 1 and 5."""
    (block,) = chain([1, 2, 3, 4])
    put_blocks(tmp_path, [block])
    other = open_store(tmp_path, OTHER_FINGERPRINT)
    assert not other.has(block.key, FULL)
    assert other.children(block.header.parent) == ()
    with pytest.raises(BlockMissing):
        read(other, block)
    assert other.usage().num_blocks == 0
    assert other.total_usage().num_blocks == 1


def test_directories_and_files_are_for_this_user_only(tmp_path: Path) -> None:
    (block,) = chain([1, 2, 3, 4])
    cache_dir = tmp_path / "fresh" / "cache"
    store = open_store(cache_dir)
    write_all(store, [block])
    path_of(cache_dir, block).write_bytes(b"damaged")
    with pytest.raises(BlockDamaged):
        read(store, block)
    write_all(store, [block])
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "fresh").rglob("*")}
    assert len(modes) > 6
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items())


@pytest.mark.parametrize(
    "use",
    [lambda store, block: store.touch([block.key]), lambda store, block: store.read_if_sound(block.header)],
    ids=["touched", "read"],
)
def test_touches_reach_the_index_at_close(tmp_path: Path, use: Callable[[DiskStore, Block], object]) -> None:
    clock, roots = HandClock(), [chain([start, 0, 0, 0])[0] for start in range(3)]
    with closing(open_store(tmp_path / "cache", clock=clock)) as store:
        for block in roots:
            clock.now_s += 1
            write_all(store, [block])
        clock.now_s += 1
        use(store, roots[0])
    limit_bytes = file_bytes(tmp_path / "measure") * 2
    with closing(open_store(tmp_path / "cache", limit_bytes=limit_bytes, clock=clock)) as store:
        assert store.has_all([block.key for block in roots], FULL) == [True, False, True]


def test_a_smaller_limit_holds_as_soon_as_the_store_is_open(tmp_path: Path) -> None:
    """Trap 25; blocks of a model that is no longer used count and go too, and leaves go first."""
    others = chain(list(range(64 * BLOCK_SIZE)), fingerprint=OTHER_FINGERPRINT)
    put_blocks(tmp_path / "cache", others, OTHER_FINGERPRINT)
    limit_bytes = file_bytes(tmp_path / "measure") * 10
    with closing(open_store(tmp_path / "cache", limit_bytes=limit_bytes)) as store:
        assert 0 < store.total_usage().num_bytes <= limit_bytes
        on_disk = sum(path.stat().st_size for path in (tmp_path / "cache/blocks").rglob("*.safetensors"))
        assert on_disk == store.total_usage().num_bytes
        left = [block.token_ids[0] for block in store._index.blocks()]
        assert sorted(left) == [BLOCK_SIZE * number for number in range(len(left))]


def test_a_late_use_of_a_closed_store_harms_nobody(tmp_path: Path) -> None:
    """A writer that did not end in time must not take the index of the next process with it."""
    blocks = chain(list(range(8)))
    closed = open_store(tmp_path)
    write_all(closed, blocks[:1])
    closed.close()
    store = open_store(tmp_path)
    inode = (tmp_path / "index.db").stat().st_ino
    assert not closed.has(blocks[0].key, FULL)
    with pytest.raises(StorageError):
        closed.write([(blocks[1].header, blocks[1].payload)])
    assert (tmp_path / "index.db").stat().st_ino == inode
    assert store.has(blocks[0].key, FULL)
    assert store.write([(blocks[1].header, blocks[1].payload)])
    assert read(store, blocks[1]) == blocks[1].payload
    store.close()
    assert list((tmp_path / "writers").iterdir()) == []


def test_the_stored_block_that_begins_most_like_a_prompt_is_among_the_nearest(store: DiskStore) -> None:
    first = chain([1, 2, 3, 4])[0]
    numbers = [1, 5, 255, 256, 300, 511, 512, 65536, 70000]
    blocks = [block_behind(first.key, [one, two, 9, 9]) for one in numbers for two in numbers]
    write_all(store, [first, *blocks])

    def longest(found: Sequence[TierNode], wanted: list[int]) -> int:
        return max(common_run(block.token_ids, wanted) for block in found)

    for wanted in ([7, 7, 7, 7], [300, 5, 9, 9], [300, 511, 256, 1], [0], [70000, 1]):
        nearest = store.nearest(first.key, wanted, 2)
        assert len(nearest) <= 4
        assert longest(nearest, wanted) == longest(store.children(first.key), wanted)
