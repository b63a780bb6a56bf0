"""Blocks of one group: free, cached or used, and nothing in between."""

import pytest

from kvchat.engine.api.ids import BlockId, BlockKey
from kvchat.engine.cache.block_pool import BlockPool

pytestmark = pytest.mark.pure


def key(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(32, "big"))


def pool_of(num_blocks: int) -> tuple[BlockPool, list[BlockKey]]:
    evicted: list[BlockKey] = []
    return BlockPool(num_blocks, evicted.append), evicted


def cached(pool: BlockPool, number: int) -> BlockId:
    block = pool.allocate()
    pool.name(block, key(number), None)
    pool.release(block)
    return block


def test_a_name_is_given_once_and_only_to_a_used_block() -> None:
    pool, _ = pool_of(1)
    with pytest.raises(AssertionError):
        pool.name(BlockId(0), key(1), None)
    block = pool.allocate()
    pool.name(block, key(1), None)
    with pytest.raises(AssertionError):
        pool.name(block, key(2), None)


def test_integrity_is_broken_by_a_holder_that_is_not_counted() -> None:
    pool, _ = pool_of(2)
    block = pool.allocate()
    holders = [0, 0]
    holders[block] = 1
    pool.check_integrity(holders)
    with pytest.raises(AssertionError):
        pool.check_integrity([0, 0])
