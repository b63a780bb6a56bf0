"""The catalog sees every model's blocks without a model, and removes what nothing refers to."""

from pathlib import Path

import pytest

from kvchat.engine.api.ids import BlockKey, chain_keys, root_key
from kvchat.engine.memory.disk.catalog import BlockCatalog
from kvchat.engine.memory.disk.index import DiskUsage, IndexedBlock
from tests.engine.memory.chains import (
    BLOCK_SIZE,
    FINGERPRINT,
    FULL,
    OTHER_FINGERPRINT,
    SLIDING,
    block_behind,
    chain,
    open_store,
    put_blocks,
    write_all,
)

pytestmark = pytest.mark.pure


def test_usage_is_told_by_fingerprint(tmp_path: Path) -> None:
    _write(tmp_path, FINGERPRINT, list(range(10)))
    _write(tmp_path, OTHER_FINGERPRINT, list(range(4)))
    catalog = BlockCatalog(tmp_path)
    usages = catalog.usages()
    assert {name: (usage.num_blocks, usage.num_tails) for name, usage in usages.items()} == {
        FINGERPRINT: (3, 1),
        OTHER_FINGERPRINT: (1, 0),
    }
    files = list((tmp_path / "blocks").rglob("*.safetensors"))
    assert catalog.usage() == DiskUsage(
        num_blocks=4, num_tails=1, num_bytes=sum(path.stat().st_size for path in files)
    )
    catalog.close()


def test_a_directory_that_never_was_is_empty(tmp_path: Path) -> None:
    catalog = BlockCatalog(tmp_path / "none" / "yet")
    assert catalog.usages() == {}
    assert catalog.blocks() == []
    catalog.close()


def test_removing_keys_frees_all_their_groups_and_empty_directories(tmp_path: Path) -> None:
    _write(tmp_path, FINGERPRINT, list(range(8)))
    catalog = BlockCatalog(tmp_path)
    keys = [block.key for block in catalog.blocks()]
    before = catalog.usage()
    assert catalog.remove(FINGERPRINT, [*keys, BlockKey(b"\x00" * 32)]) == before
    assert catalog.usages() == {}
    assert list((tmp_path / "blocks").iterdir()) == []
    catalog.close()


def test_collecting_keeps_no_damaged_block_either(tmp_path: Path) -> None:
    """Its header holds the token ids of a conversation that may be the deleted one."""
    _write(tmp_path, FINGERPRINT, list(range(8)))
    for path in (tmp_path / "blocks").rglob("*.safetensors"):
        path.write_bytes(b"damaged")
    (tmp_path / "index.db").unlink()
    catalog = BlockCatalog(tmp_path)
    assert any((tmp_path / "quarantine").iterdir())
    catalog.collect(lambda block: True)
    assert list((tmp_path / "quarantine").iterdir()) == []
    catalog.close()


def test_collecting_removes_exactly_what_nothing_refers_to(tmp_path: Path) -> None:
    """Two conversations share their first block; one is deleted."""
    kept_ids = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    gone_ids = [1, 2, 3, 4, 50, 60, 70, 80, 90]
    store = open_store(tmp_path)
    for blocks in (chain(kept_ids), chain(kept_ids, SLIDING), chain(gone_ids)):
        for block in blocks:
            store.write([(block.header, block.payload)])
    older_tail = block_behind(chain(kept_ids)[1].key, [11, 12])
    write_all(store, [older_tail])
    store.close()

    root = root_key(FINGERPRINT)
    kept_keys = set(chain_keys(root, kept_ids, BLOCK_SIZE))
    tail_parent = chain(kept_ids)[1].key

    def is_referenced(block: IndexedBlock) -> bool:
        if block.is_tail:
            return block.parent == tail_parent and block.token_ids == (9,)
        return block.key in kept_keys

    catalog = BlockCatalog(tmp_path)
    freed = catalog.collect(is_referenced)
    assert (freed.num_blocks, freed.num_tails) == (3, 2)
    assert freed.num_bytes > 0
    assert catalog.collect(is_referenced).num_blocks == 0
    catalog.close()
    store = open_store(tmp_path)
    assert store.has_all([block.key for block in chain(kept_ids)], FULL) == [True] * 3
    assert store.has_all([block.key for block in chain(kept_ids)], SLIDING) == [True] * 3
    assert store.has_all([block.key for block in chain(gone_ids)], FULL) == [True, False, False]


def _write(cache_dir: Path, fingerprint: bytes, token_ids: list[int]) -> None:
    put_blocks(cache_dir, chain(token_ids, fingerprint=fingerprint), fingerprint)
