"""The admin sees every model's blocks without a model, and removes what nothing refers to."""

from contextlib import closing
from pathlib import Path

import pytest

from kvchat.engine.api.ids import BlockKey
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.memory.disk.index import DiskUsage
from tests.engine.memory.chains import (
    FINGERPRINT,
    FULL,
    OTHER_FINGERPRINT,
    SLIDING,
    block_behind,
    chain,
    open_store,
    put_blocks,
)

pytestmark = pytest.mark.pure


def test_usage_is_told_by_fingerprint(tmp_path: Path) -> None:
    _write(tmp_path, FINGERPRINT, list(range(10)))
    _write(tmp_path, OTHER_FINGERPRINT, list(range(4)))
    admin = CacheAdmin(tmp_path)
    usages = admin.usages()
    assert {name: (usage.num_blocks, usage.num_tails) for name, usage in usages.items()} == {
        FINGERPRINT: (3, 1),
        OTHER_FINGERPRINT: (1, 0),
    }
    files = list((tmp_path / "blocks").rglob("*.safetensors"))
    assert admin.usage() == DiskUsage(
        num_blocks=4, num_tails=1, num_bytes=sum(path.stat().st_size for path in files)
    )
    admin.close()


def test_a_directory_that_never_was_is_empty(tmp_path: Path) -> None:
    admin = CacheAdmin(tmp_path / "none" / "yet")
    assert admin.usages() == {}
    assert admin.blocks() == []
    admin.close()


def test_removing_keys_frees_all_their_groups_and_empty_directories(tmp_path: Path) -> None:
    _write(tmp_path, FINGERPRINT, list(range(8)))
    admin = CacheAdmin(tmp_path)
    keys = [block.key for block in admin.blocks()]
    before = admin.usage()
    assert admin.remove(FINGERPRINT, [*keys, BlockKey(b"\x00" * 32)]) == before
    assert admin.usages() == {}
    assert list((tmp_path / "blocks").iterdir()) == []
    admin.close()


def test_collecting_keeps_no_damaged_block_either(tmp_path: Path) -> None:
    """Its header holds the token ids of a conversation that may be the deleted one."""
    _write(tmp_path, FINGERPRINT, list(range(8)))
    for path in (tmp_path / "blocks").rglob("*.safetensors"):
        path.write_bytes(b"damaged")
    (tmp_path / "index.db").unlink()
    admin = CacheAdmin(tmp_path)
    assert any((tmp_path / "quarantine").iterdir())
    admin.collect(lambda block: True)
    assert list((tmp_path / "quarantine").iterdir()) == []
    admin.close()


def test_collecting_removes_exactly_what_nothing_refers_to(tmp_path: Path) -> None:
    """Two conversations share their first block; one is deleted."""
    kept, gone = chain([1, 2, 3, 4, 5, 6, 7, 8, 9]), chain([1, 2, 3, 4, 50, 60, 70, 80, 90])
    windowed = chain([1, 2, 3, 4, 5, 6, 7, 8, 9], SLIDING)
    older_tail = block_behind(kept[1].key, [11, 12])
    put_blocks(tmp_path, [*kept, *windowed, *gone[1:], older_tail])
    names = {block.key for block in kept}
    with closing(CacheAdmin(tmp_path)) as admin:
        freed = admin.collect(lambda block: block.key in names)
        assert (freed.num_blocks, freed.num_tails) == (3, 2)
        assert freed.num_bytes > 0
        assert admin.collect(lambda block: block.key in names).num_blocks == 0
    store = open_store(tmp_path)
    for group in (FULL, SLIDING):
        assert store.has_all([block.key for block in kept], group) == [True] * 3
    assert store.has_all([block.key for block in gone], FULL) == [True, False, False]


def _write(cache_dir: Path, fingerprint: bytes, token_ids: list[int]) -> None:
    put_blocks(cache_dir, chain(token_ids, fingerprint=fingerprint), fingerprint)
