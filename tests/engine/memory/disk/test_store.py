"""The disk tier gives back exactly what was written, or says that it cannot."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import xxhash
from safetensors import safe_open

from kvchat.engine.api.ids import root_key
from kvchat.engine.cache.match import common_run
from kvchat.engine.memory.disk.store import DiskStore, StoredBlock
from kvchat.errors import BlockDamaged, BlockMissing, StorageError
from tests.engine.memory.chains import (
    BLOCK_SIZE,
    FINGERPRINT,
    FULL,
    OTHER_FINGERPRINT,
    SLIDING,
    Clock,
    block_behind,
    chain,
    open_store,
    path_of,
    read,
    write_all,
)
from tests.engine.memory.disk.small_disk import file_bytes

pytestmark = [pytest.mark.pure, pytest.mark.long]


def test_a_block_reads_back_as_it_was_written_also_in_a_later_process(tmp_path: Path) -> None:
    blocks = chain(list(range(10)))
    store = open_store(tmp_path)
    write_all(store, blocks)
    assert [read(store, block) for block in blocks] == [block.payload for block in blocks]
    store.close()

    store = open_store(tmp_path)
    assert store.has_all([block.key for block in blocks], FULL) == [True] * 3
    assert [read(store, block) for block in blocks] == [block.payload for block in blocks]
    store.close()


def test_a_block_is_read_into_the_callers_buffer(store: DiskStore) -> None:
    (block,) = chain([1, 2, 3, 4])
    write_all(store, [block])
    buffer = np.zeros(len(block.payload) // 4, dtype=np.float32)
    store.read(block.key, FULL, parent=block.header.parent, token_ids=[1, 2, 3, 4], out=memoryview(buffer))
    assert buffer.tobytes() == block.payload


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


def test_each_group_has_its_own_bytes_and_may_lack_them(store: DiskStore) -> None:
    (full,), (sliding,) = chain([1, 2, 3, 4], FULL), chain([1, 2, 3, 4], SLIDING)
    write_all(store, [full])
    assert store.has(full.key, FULL)
    assert not store.has(full.key, SLIDING)
    write_all(store, [sliding])
    assert read(store, full) == full.payload
    assert read(store, sliding) == sliding.payload
    assert store.usage().num_blocks == 2


def test_children_are_the_blocks_and_tails_behind_a_parent(store: DiskStore) -> None:
    first, tail = chain([1, 2, 3, 4, 5, 6])
    other = block_behind(first.key, [5, 6, 7, 8])
    windowed = block_behind(first.key, [5, 6, 7, 8], SLIDING)
    write_all(store, [first, tail, other, windowed])
    children = {child.key: child for child in store.children(first.key)}
    assert children.keys() == {tail.key, other.key}
    assert children[tail.key].token_ids == (5, 6)
    assert children[tail.key].groups == {FULL}
    assert children[other.key].groups == {FULL, SLIDING}
    assert [child.key for child in store.children(root_key(FINGERPRINT))] == [first.key]
    assert store.children(other.key) == ()


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
    store = open_store(tmp_path)
    other = open_store(tmp_path, OTHER_FINGERPRINT)
    write_all(store, [block])
    assert not other.has(block.key, FULL)
    assert other.children(block.header.parent) == ()
    with pytest.raises(BlockMissing):
        read(other, block)
    assert other.usage().num_blocks == 0
    assert other.total_usage().num_blocks == 1
    store.close()
    other.close()


def test_removing_a_block_removes_its_file_and_its_row(tmp_path: Path, store: DiskStore) -> None:
    blocks = chain(list(range(12)))
    window = chain(list(range(12)), SLIDING)
    write_all(store, blocks + window)
    store.remove(blocks[2].key, FULL)
    store.remove(blocks[2].key, FULL)
    assert store.has_all([block.key for block in blocks], FULL) == [True, True, False]
    assert store.has(window[2].key, SLIDING)
    store.remove_keys([block.key for block in blocks])
    assert store.usage().num_blocks == 0
    assert store.usage().num_bytes == 0
    assert not list((tmp_path / "blocks").rglob("*.safetensors"))


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
    store.close()


class TestLimit:
    """The files of all fingerprints together fit the limit; longest unused leaves go first."""

    def test_the_limit_holds_after_every_write_and_leaves_go_first(self, tmp_path: Path) -> None:
        clock = Clock()
        old, new = chain(list(range(12))), chain(list(range(100, 112)))
        limit_bytes = file_bytes(tmp_path / "sized") * 4
        store = open_store(tmp_path / "cache", limit_bytes=limit_bytes, clock=clock)
        for block in old + new:
            clock.now_s += 1
            store.write([(block.header, block.payload)])
            assert store.usage().num_bytes <= limit_bytes
        assert store.has_all([block.key for block in old], FULL) == [True, False, False]
        assert store.has_all([block.key for block in new], FULL) == [True, True, True]
        store.close()

    def test_what_was_touched_stays_longer(self, tmp_path: Path) -> None:
        clock = Clock()
        roots = [chain([start, 0, 0, 0])[0] for start in range(4)]
        store = open_store(tmp_path / "cache", limit_bytes=file_bytes(tmp_path / "measure") * 3, clock=clock)
        for block in roots[:3]:
            clock.now_s += 1
            store.write([(block.header, block.payload)])
        clock.now_s += 1
        store.touch([roots[0].key])
        clock.now_s += 1
        store.write([(roots[3].header, roots[3].payload)])
        assert store.has_all([block.key for block in roots], FULL) == [True, False, True, True]
        store.close()

    def test_touches_reach_the_index_at_close(self, tmp_path: Path) -> None:
        clock = Clock()
        roots = [chain([start, 0, 0, 0])[0] for start in range(3)]
        store = open_store(tmp_path / "cache", clock=clock)
        for block in roots:
            clock.now_s += 1
            store.write([(block.header, block.payload)])
        clock.now_s += 1
        store.touch([roots[0].key])
        store.close()
        store = open_store(tmp_path / "cache", limit_bytes=file_bytes(tmp_path / "measure") * 2, clock=clock)
        assert store.has_all([block.key for block in roots], FULL) == [True, False, True]
        store.close()

    def test_a_smaller_limit_holds_as_soon_as_the_store_is_open(self, tmp_path: Path) -> None:
        """Trap 25; blocks of a model that is no longer used count and go too."""
        store = open_store(tmp_path / "cache", OTHER_FINGERPRINT)
        write_all(store, chain(list(range(64 * BLOCK_SIZE)), fingerprint=OTHER_FINGERPRINT))
        store.close()
        limit_bytes = file_bytes(tmp_path / "measure") * 10
        store = open_store(tmp_path / "cache", limit_bytes=limit_bytes)
        assert 0 < store.total_usage().num_bytes <= limit_bytes
        on_disk = sum(path.stat().st_size for path in (tmp_path / "cache/blocks").rglob("*.safetensors"))
        assert on_disk == store.total_usage().num_bytes
        left = [block.token_ids[0] for block in store._index.blocks()]
        assert sorted(left) == [BLOCK_SIZE * number for number in range(len(left))]
        store.close()

    def test_a_limit_below_one_block_keeps_nothing_and_fails_nothing(self, tmp_path: Path) -> None:
        store = open_store(tmp_path / "cache", limit_bytes=10)
        (block,) = chain([1, 2, 3, 4])
        assert not store.write([(block.header, block.payload)])
        assert store.usage().num_blocks == 0
        store.close()


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


def test_two_stores_share_a_directory(tmp_path: Path) -> None:
    blocks = chain(list(range(12)))
    one, two = open_store(tmp_path), open_store(tmp_path)
    write_all(one, blocks[:2])
    assert two.has_all([block.key for block in blocks], FULL) == [True, True, False]
    assert not two.write([(blocks[0].header, blocks[0].payload)])
    assert two.write([(blocks[2].header, blocks[2].payload)])
    assert read(one, blocks[2]) == blocks[2].payload
    one.remove_keys([block.key for block in blocks])
    with pytest.raises(BlockMissing):
        read(two, blocks[1])
    assert two.usage().num_blocks == 0
    one.close()
    two.close()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StorageError, match="taken"):
        open_store(tmp_path / "taken")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_says_what_to_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StorageError, match="another cache directory"):
            open_store(tmp_path / "cache")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("wanted", [[7, 7, 7, 7], [300, 5, 9, 9], [300, 511, 256, 1], [0], [70000, 1]])
def test_the_stored_block_that_begins_most_like_a_prompt_is_among_the_nearest(
    store: DiskStore, wanted: list[int]
) -> None:
    first = chain([1, 2, 3, 4])[0]
    numbers = [1, 5, 255, 256, 300, 511, 512, 65536, 70000]
    blocks = [block_behind(first.key, [one, two, 9, 9]) for one in numbers for two in numbers]
    write_all(store, [first, *blocks])
    nearest = store.nearest(first.key, wanted, 2)
    assert len(nearest) <= 4

    def longest(found: Sequence[StoredBlock]) -> int:
        return max(common_run(block.token_ids, wanted) for block in found)

    assert longest(nearest) == longest(store.children(first.key))
