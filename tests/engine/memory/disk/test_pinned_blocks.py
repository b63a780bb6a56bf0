"""Blocks that somebody keeps by name stay on disk whatever room is needed, and nothing else does."""

import os
from pathlib import Path
from time import time

import pytest

from kvchat.engine.api.ids import BlockKey
from kvchat.engine.memory.disk.block_encryption import DiskKey
from kvchat.engine.memory.disk.catalog import BlockCatalog
from kvchat.engine.memory.disk.pinned_blocks import PinnedBlocks
from kvchat.errors import StorageError
from tests.engine.memory.chains import FINGERPRINT, FULL, Clock, chain, open_store, put_blocks, write_all
from tests.engine.memory.disk.test_refused_opens import no_descriptors

pytestmark = pytest.mark.pure

PACK = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_kept_blocks_stay_under_a_limit_that_everything_else_makes_room_for(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock=clock)
    write_all(store, chain(PACK))
    size = store.total_usage().num_bytes
    store.close()
    _keep(tmp_path, PACK)

    clock.now_s += 10
    store = open_store(tmp_path, clock=clock, limit_bytes=2 * size)
    for start in range(100, 160, 10):
        clock.now_s += 10
        write_all(store, chain(list(range(start, start + 9))))
        assert store.total_usage().num_bytes <= 2 * size
    assert store.has_all(_keys(PACK), FULL) == [True] * 3
    assert not any(store.has_all(_keys(list(range(100, 109))), FULL))
    store.close()

    with_catalog = BlockCatalog(tmp_path)
    with_catalog.let_go("spec")
    with_catalog.close()
    store = open_store(tmp_path, clock=clock, limit_bytes=size)
    assert not any(store.has_all(_keys(PACK), FULL)), "the oldest of all, once nobody keeps it"


def test_what_is_kept_is_not_collected_and_no_newer_tail_replaces_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    write_all(store, chain(PACK))
    _keep(tmp_path, PACK)
    store.remove(_keys(PACK)[-1], FULL)
    assert store.has(_keys(PACK)[-1], FULL)
    store.close()
    catalog = BlockCatalog(tmp_path)
    assert catalog.collect(lambda block: False).num_blocks == 0
    assert catalog.kept_bytes() == catalog.usage().num_bytes
    catalog.let_go("spec")
    assert catalog.collect(lambda block: False).num_blocks == 3
    catalog.close()


def test_blocks_are_kept_before_they_are_there(tmp_path: Path) -> None:
    _keep(tmp_path, PACK)
    clock = Clock()
    store = open_store(tmp_path, clock=clock)
    write_all(store, chain(PACK))
    size = store.total_usage().num_bytes
    store.close()
    store = open_store(tmp_path, clock=clock, limit_bytes=size)
    assert not store.write([(chain([50, 51, 52, 53])[0].header, chain([50, 51, 52, 53])[0].payload)])
    assert store.has_all(_keys(PACK), FULL) == [True] * 3


def test_other_processes_see_at_once_what_is_kept(tmp_path: Path) -> None:
    one, other = PinnedBlocks(tmp_path), PinnedBlocks(tmp_path)
    assert other.all() == frozenset()
    names = [DiskKey(bytes([number]) * 32) for number in range(3)]
    one.keep("spec", FINGERPRINT, names)
    assert other.all() == {(FINGERPRINT, name) for name in names}
    one.keep("spec", FINGERPRINT, names[:1])
    assert other.all() == {(FINGERPRINT, names[0])}
    one.let_go("spec")
    assert other.all() == frozenset()


@pytest.mark.parametrize("damage", [b"", b"short", bytes(48), bytes(32 * 40 + 16)])
def test_a_damaged_file_keeps_nothing(tmp_path: Path, damage: bytes) -> None:
    kept = PinnedBlocks(tmp_path)
    kept.keep("spec", FINGERPRINT, [DiskKey(bytes(32))])
    (tmp_path / "kept" / "spec.keep").write_bytes(damage)
    assert PinnedBlocks(tmp_path).all() == frozenset()


def test_what_cannot_be_read_now_is_asked_for_again_and_nothing_goes_meanwhile(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock=clock)
    write_all(store, chain(PACK))
    size = store.total_usage().num_bytes
    store.close()
    _keep(tmp_path, PACK)
    file = tmp_path / "kept" / "spec.keep"
    data = file.read_bytes()
    file.unlink()
    file.mkdir()  # nobody can read it, whoever he is
    other = chain([50, 51, 52, 53])[0]
    store = open_store(tmp_path, clock=clock, limit_bytes=size)
    with pytest.raises(StorageError, match="permissions"):
        store.write([(other.header, other.payload)])
    assert store.has_all(_keys(PACK), FULL) == [True] * 3
    file.rmdir()
    file.write_bytes(data)
    assert not store.write([(other.header, other.payload)])
    assert store.has_all(_keys(PACK), FULL) == [True] * 3


def test_a_failed_read_is_not_taken_for_what_is_kept(tmp_path: Path) -> None:
    kept = PinnedBlocks(tmp_path)
    kept.keep("spec", FINGERPRINT, [DiskKey(bytes(32))])
    with no_descriptors(), pytest.raises(StorageError):
        kept.all()
    assert kept.all() == {(FINGERPRINT, DiskKey(bytes(32)))}
    (tmp_path / "kept").rename(tmp_path / "aside")
    (tmp_path / "kept").write_bytes(b"no directory")
    with pytest.raises(StorageError):
        kept.all()


def _keep(cache_dir: Path, token_ids: list[int], name: str = "spec") -> None:
    catalog = BlockCatalog(cache_dir)
    catalog.keep(name, FINGERPRINT, _keys(token_ids))
    catalog.close()


def _keys(token_ids: list[int]) -> list[BlockKey]:
    return [block.key for block in chain(token_ids)]


def test_what_a_killed_process_has_left_half_written_goes_and_what_is_being_written_stays(
    tmp_path: Path,
) -> None:
    _keep(tmp_path, PACK)
    stale, fresh = (tmp_path / "kept" / f".spec.{number:08x}" for number in (1, 2))
    for file in (stale, fresh):
        file.write_bytes(b"half")
    long_ago_s = time() - 3600
    os.utime(stale, (long_ago_s, long_ago_s))
    os.utime(tmp_path / "kept" / "spec.keep", (long_ago_s, long_ago_s))
    _keep(tmp_path, PACK, "other")
    assert not stale.exists()
    assert fresh.exists()
    assert PinnedBlocks(tmp_path).names() == ["other", "spec"]

    os.utime(fresh, (long_ago_s, long_ago_s))
    catalog = BlockCatalog(tmp_path)
    catalog.collect(lambda block: True)
    assert not fresh.exists()
    assert catalog.is_kept("spec")
    catalog.close()


def test_what_is_kept_is_counted_without_some_names_and_with_what_is_to_come(tmp_path: Path) -> None:
    size = put_blocks(tmp_path, chain(PACK))
    _keep(tmp_path, PACK)
    catalog = BlockCatalog(tmp_path)
    assert catalog.kept_bytes() == catalog.kept_bytes(beside={FINGERPRINT: _keys(PACK)}) == size
    assert catalog.kept_bytes(but=["spec"]) == 0
    assert catalog.kept_blocks(but=["spec"]) == []
    more = [*PACK[:8], 30, 31, 32, 33]
    whole = catalog.kept_bytes(but=["spec"], beside={FINGERPRINT: _keys(PACK[:8])})
    assert whole < size
    assert catalog.kept_bytes(but=["spec"], beside={FINGERPRINT: _keys(more)}) == whole * 3 // 2
    assert catalog.block_size(FINGERPRINT) == 4
    assert catalog.block_size(bytes(32)) is None
    catalog.close()
