"""The host tier: what is evicted comes back under its name, and only whole."""

import pytest

from kvchat.engine.api.snapshot import Tier
from tests.engine.cache.caches import Cache, full_group, sliding_group

pytestmark = pytest.mark.pure


def test_what_was_evicted_is_found_in_host_memory_with_its_bytes_and_stays_there() -> None:
    cache = Cache(full_group(), sliding_group(5), num_blocks=8, num_places=8)
    cache.manager.release(cache.computed(range(14)))
    for _ in range(2):
        cache.forget_device()
        sequence = cache.open([*range(14), 99])
        match = cache.manager.match(sequence)
        assert match.length == 14
        assert set(cache.missing_bytes(match, sequence)) == {Tier.HOST}
        assert cache.admit(sequence)
        cache.compute(sequence)
        cache.check()
        cache.manager.release(sequence)


def test_an_evicted_block_is_copied_before_its_place_is_given_away_and_has_no_name_before() -> None:
    cache = Cache(full_group(), num_blocks=4, num_places=4)
    cache.manager.release(cache.computed(range(16)))
    other = cache.open(range(100, 116))
    assert cache.admit(other)
    moves = cache.manager.extend(other, 16)
    assert moves is not None
    assert [type(move).__name__ for move in moves] == ["Demote"] * 4
    assert not cache.manager.device.take_demotions(), "they were handed out with the step's moves"
    assert not any(pool.num_cached for pool in cache.manager.host.pools.values())
    cache.run(moves, [(other, 16)])
    cache.manager.release(other)
    assert cache.matched_len([*range(16), 99]) == 16


def test_the_least_recently_used_place_gives_way() -> None:
    cache = Cache(full_group(), num_blocks=4, num_places=4)
    for start in (0, 100, 200):
        cache.manager.release(cache.computed(range(start, start + 16)))
    cache.forget_device()
    assert cache.matched_len([*range(200, 216), 99]) == 16
    assert cache.matched_len([*range(16), 99]) == 0
    cache.check()


def test_a_demoted_sequence_leaves_the_device_and_comes_back_from_host_memory() -> None:
    cache = Cache(full_group(), sliding_group(5), num_blocks=8, num_places=8)
    sequence = cache.computed(range(14))
    cache.demote(sequence)
    full = cache.manager.pools[full_group().id]
    assert (full.num_used, full.num_cached) == (0, 0)
    again = cache.open([*range(14), 99])
    match = cache.manager.match(again)
    assert match.length == 14
    assert set(cache.missing_bytes(match, again)) == {Tier.HOST}
    sequence.token_ids.append(99)
    assert cache.admit(sequence)
    assert sequence.computed_len == 14
    cache.compute(sequence)
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


def test_without_a_host_tier_a_demoted_sequence_stays_cached() -> None:
    cache = Cache(full_group(), num_blocks=8)
    cache.demote(cache.computed(range(14)))
    assert cache.num_used() == [0]
    assert cache.matched_len([*range(14), 99]) == 14


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
