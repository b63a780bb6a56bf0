"""What a cache manager promises of slower tiers: what it saves there and what it brings back from there."""

import pytest

from tests.engine.cache.caches import Cache, full_group, name_of, sliding_group

pytestmark = pytest.mark.pure

LONG = list(range(100, 111))


def test_blocks_are_offered_for_saving_once_each_in_their_order() -> None:
    cache = Cache(full_group(), sliding_group(4))
    sequence = cache.computed(LONG)
    saves = cache.manager.take_saves()
    assert [(save.group, save.key) for save in saves] == [(g, key) for key in sequence.keys for g in (0, 1)]
    assert [save.parent for save in saves[::2]] == [cache.manager.root, sequence.keys[0]]
    assert cache.manager.take_saves() == ()
    assert all(cache.manager.is_resident(save) for save in saves)


def test_a_tail_is_saved_once_and_replaces_the_one_before_and_the_block_it_grows_into_replaces_it() -> None:
    cache = Cache(full_group(), sliding_group(4))
    sequence = cache.open(LONG)
    assert cache.admit(sequence)
    cache.compute(sequence, 5)
    cache.store_sequence(sequence)
    assert cache.manager.tail_saves(sequence) == ()
    cache.compute(sequence, 2)
    later = cache.manager.tail_saves(sequence)
    assert {save.replaces for save in later} == {name_of(LONG[:5], 4)}
    assert {save.key for save in later} == {name_of(LONG[:7], 4)}
    cache.store_sequence(sequence)
    cache.manager.take_saves()
    cache.compute(sequence, 1)
    assert {save.replaces for save in cache.manager.take_saves()} == {name_of(LONG[:7], 4)}
    assert cache.manager.tail_saves(sequence) == ()
