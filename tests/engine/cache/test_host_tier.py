"""The host tier: what is evicted comes back under its name, and only whole."""

import pytest

from kvchat.engine.api.snapshot import Tier
from tests.engine.cache.caches import Cache, full_group

pytestmark = pytest.mark.pure


def test_the_least_recently_used_place_gives_way() -> None:
    cache = Cache(full_group(), num_blocks=4, num_places=4)
    for start in (0, 100, 200):
        cache.manager.release(cache.computed(range(start, start + 16)))
    cache.forget_device()
    assert cache.matched_len([*range(200, 216), 99]) == 16
    assert cache.matched_len([*range(16), 99]) == 0
    cache.check()


def test_what_another_sequence_needs_stays_on_the_device() -> None:
    cache = Cache(full_group(), num_blocks=12, num_places=12)
    first, second = cache.computed([*range(8), 50, 51]), cache.computed([*range(8), 60, 61])
    cache.demote(first)
    assert cache.num_used() == [3]
    cache.manager.release(second)
    cache.demote(third := cache.computed([*range(8), 70, 71]))
    assert third.computed_len == 0
    pool = cache.manager.pools[full_group().id]
    # The other sequence's tail still needs the common blocks.
    assert (pool.num_used, pool.num_cached) == (0, 3)
    cache.check()


def test_a_pinned_sequence_that_is_demoted_leaves_only_what_is_not_pinned() -> None:
    cache = Cache(full_group(), num_blocks=8, num_places=8)
    sequence = cache.computed(range(14))
    cache.manager.pins.pin(sequence)
    cache.demote(sequence)
    again = cache.open([*range(14), 99])
    match = cache.manager.match(again)
    assert match.length == 14
    assert cache.missing_bytes(match, again) == {Tier.HOST: full_group().block_bytes(4)}
    assert cache.num_used() == [3]
