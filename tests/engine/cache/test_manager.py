"""What a cache manager promises, one promise at a time."""

import pytest

from tests.engine.cache.caches import Cache, full_group, sliding_group

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
