"""Blocks of one group: free, cached or used, and nothing in between."""

import random

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


def test_a_released_block_is_free_without_a_name_and_cached_with_one() -> None:
    pool, _ = pool_of(2)
    first, second = pool.allocate(), pool.allocate()
    pool.name(second, key(2), None)
    assert (pool.num_free, pool.num_cached, pool.num_used) == (0, 0, 2)
    pool.release(first)
    pool.release(second)
    assert (pool.num_free, pool.num_cached, pool.num_used) == (1, 1, 0)


def test_free_blocks_are_handed_out_before_cached_ones() -> None:
    pool, evicted = pool_of(2)
    kept = cached(pool, 1)
    assert pool.allocate() != kept
    assert evicted == []


def test_the_cached_block_that_was_released_first_is_evicted_and_its_key_told() -> None:
    pool, evicted = pool_of(3)
    held = [pool.allocate() for _ in range(3)]
    for number, block in enumerate(held):
        pool.name(block, key(number), None)
    for block in (held[1], held[2], held[0]):
        pool.release(block)
    assert [pool.allocate() for _ in range(3)] == [held[1], held[2], held[0]]
    assert evicted == [key(1), key(2), key(0)]


def test_a_name_is_given_once_and_only_to_a_used_block() -> None:
    pool, _ = pool_of(1)
    with pytest.raises(AssertionError):
        pool.name(BlockId(0), key(1), None)
    block = pool.allocate()
    pool.name(block, key(1), None)
    with pytest.raises(AssertionError):
        pool.name(block, key(2), None)


def test_a_forgotten_block_is_free_or_stays_with_its_holder() -> None:
    pool, evicted = pool_of(2)
    block = cached(pool, 1)
    pool.forget(block)
    assert pool.num_free == 2
    held = pool.allocate()
    pool.name(held, key(2), None)
    pool.forget(held)
    assert (pool.key(held), pool.num_used) == (None, 1)
    assert evicted == []


def test_an_allocated_block_has_no_name_from_before() -> None:
    """Trap 8."""
    pool, evicted = pool_of(1)
    block = cached(pool, 1)
    assert pool.allocate() == block
    assert pool.key(block) is None
    assert evicted == [key(1)]


def test_integrity_is_broken_by_a_holder_that_is_not_counted() -> None:
    pool, _ = pool_of(2)
    block = pool.allocate()
    holders = [0, 0]
    holders[block] = 1
    pool.check_integrity(holders)
    with pytest.raises(AssertionError):
        pool.check_integrity([0, 0])


def test_accounts_stay_in_order_through_random_use() -> None:
    """Trap 12: drift of one block at a time."""
    chance = random.Random(5)
    pool, _ = pool_of(8)
    holders = [0] * 8
    for number in range(2000):
        used = [BlockId(index) for index, count in enumerate(holders) if count]
        if pool.num_available and (not used or chance.random() < 0.5):
            holders[pool.allocate()] += 1
        else:
            block = chance.choice(used)
            if chance.random() < 0.3:
                pool.share(block)
                holders[block] += 1
            elif chance.random() < 0.3 and pool.key(block) is None:
                pool.name(block, key(number), None)
            else:
                pool.release(block)
                holders[block] -= 1
        pool.check_integrity(holders)
        assert pool.num_free + pool.num_cached + pool.num_used == 8
        assert pool.num_used == sum(count > 0 for count in holders)
