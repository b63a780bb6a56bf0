"""What a cache manager promises, one promise at a time."""

import pytest

from tests.engine.cache.caches import Cache, full_group

pytestmark = pytest.mark.pure

LONG = list(range(100, 111))


def test_a_load_that_fails_names_nothing_it_was_meant_to_fill() -> None:
    """Trap 22: the copy behind the failed load never ran, so the tail holds nothing."""
    cache = Cache(full_group(), full_group(1))
    cache.store_branch(stored := cache.computed(LONG))
    cache.manager.release(stored)
    cache.forget_device()
    cache.tier.unreadable.add(next(iter(cache.tier.contents)))

    branch = cache.open([*LONG, 1])
    moves = cache.manager.admit(branch, cache.manager.match(branch))
    assert moves is not None
    assert not cache.device.execute(moves)
    cache.manager.finish_moves()
    cache.manager.abandon(branch)

    assert len(cache.manager.index) == 0
    assert all(pool.num_free == pool.num_blocks for pool in cache.manager.pools.values())


def test_an_admission_without_room_leaves_the_order_of_eviction() -> None:
    cache = Cache(full_group(), num_blocks=8)
    cache.manager.release(cache.computed(LONG))
    cache.computed([9] * 20)
    wanting = cache.open([*LONG[:10], 1, 1])
    assert not cache.admit(wanting)

    cache.computed([8] * 4)
    assert cache.matched_len(LONG) == 8
    cache.computed([7] * 4)
    assert cache.matched_len(LONG) == 4


def test_a_fork_does_not_share_blocks_that_a_step_has_left_unwritten() -> None:
    """Trap 11: both branches would write them."""
    cache = Cache(full_group())
    parent = cache.computed(LONG[:6])
    parent.token_ids += LONG[6:]
    assert cache.manager.extend(parent, 5) is not None
    child = cache.manager.fork(parent)
    cache.compute(parent, 5)
    child.token_ids[6:] = [1, 2, 3, 4, 5]
    cache.compute(child)
    cache.check()
