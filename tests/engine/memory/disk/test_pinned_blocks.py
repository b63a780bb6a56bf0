"""Blocks that somebody keeps by name stay on disk whatever room is needed, and nothing else does."""

import os
from contextlib import closing
from pathlib import Path
from time import time

import pytest

from kvchat.engine.api.ids import BlockKey
from kvchat.engine.memory.disk.block_encryption import DiskKey
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.memory.disk.pinned_blocks import PinnedBlocks
from kvchat.errors import StorageError
from tests.engine.memory.chains import FINGERPRINT, FULL, chain, open_store, put_blocks, write_all
from tests.engine.memory.disk.small_disk import MakeDisk, conversation
from tests.engine.memory.disk.test_refused_opens import no_descriptors

pytestmark = pytest.mark.pure

PACK = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_what_is_kept_is_not_collected_and_no_newer_tail_replaces_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    write_all(store, chain(PACK))
    _keep(tmp_path, PACK)
    store.remove(_keys(PACK)[-1], FULL)
    assert store.has(_keys(PACK)[-1], FULL)
    with closing(CacheAdmin(tmp_path)) as admin:
        assert admin.collect(lambda block: False).num_blocks == 0
        assert admin.kept_bytes() == admin.usage().num_bytes
        admin.let_go("spec")
        assert admin.collect(lambda block: False).num_blocks == 3


def test_blocks_are_kept_before_they_are_there(make_disk: MakeDisk) -> None:
    disk, blocks = make_disk(3), conversation(1, 3)
    disk.keep(blocks)
    assert disk.request(blocks) == 0
    assert not disk.write(conversation(2, 1)[0])
    assert disk.found(blocks) == 3


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


def test_what_cannot_be_read_now_is_asked_for_again_and_nothing_goes_meanwhile(
    tmp_path: Path, make_disk: MakeDisk
) -> None:
    """Blocks that need no room are written all the same."""
    disk, blocks, (other,) = make_disk(3), conversation(1, 3), conversation(2, 1)
    disk.keep(blocks)
    disk.reopen()
    kept = tmp_path / "cache/kept/pack.keep"
    data = kept.read_bytes()
    kept.unlink()
    kept.mkdir()  # nobody can read it, whoever he is
    assert all(disk.write(block) for block in blocks)
    with pytest.raises(StorageError, match=r"says which blocks stay.*permissions"):
        disk.write(other)
    kept.rmdir()
    kept.write_bytes(data)
    assert not disk.write(other)
    assert disk.found(blocks) == 3


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
    with closing(CacheAdmin(cache_dir)) as admin:
        admin.keep(name, FINGERPRINT, _keys(token_ids))


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
    admin = CacheAdmin(tmp_path)
    admin.collect(lambda block: True)
    assert not fresh.exists()
    assert admin.is_kept("spec")
    admin.close()


def test_what_is_kept_is_counted_without_some_names_and_with_what_is_to_come(tmp_path: Path) -> None:
    size = put_blocks(tmp_path, chain(PACK))
    _keep(tmp_path, PACK)
    admin = CacheAdmin(tmp_path)
    assert admin.kept_bytes() == admin.kept_bytes(beside={FINGERPRINT: _keys(PACK)}) == size
    assert admin.kept_bytes(but=["spec"]) == 0
    assert admin.kept_blocks(but=["spec"]) == []
    more = [*PACK[:8], 30, 31, 32, 33]
    whole = admin.kept_bytes(but=["spec"], beside={FINGERPRINT: _keys(PACK[:8])})
    assert whole < size
    assert admin.kept_bytes(but=["spec"], beside={FINGERPRINT: _keys(more)}) == whole * 3 // 2
    assert (admin.block_size(FINGERPRINT), admin.block_size(bytes(32))) == (4, None)
    admin.close()
