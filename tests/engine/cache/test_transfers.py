"""What a cache manager promises of slower tiers: what it saves there and what it brings back from there."""

import pytest

from kvchat.engine.api.ids import GroupId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_operations import Load
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


def test_a_block_that_was_evicted_before_it_was_saved_is_not_resident() -> None:
    cache = Cache(full_group(), num_blocks=3)
    cache.manager.release(cache.computed(LONG[:8]))
    saves = cache.manager.take_saves()
    cache.computed([1] * 8)
    assert [cache.manager.is_resident(save) for save in saves] == [True, False]


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


def test_what_was_saved_comes_back_bit_for_bit_and_is_named_once_it_is_there() -> None:
    cache = Cache(full_group(), sliding_group(6))
    cache.leave_on_disk(LONG)
    again = cache.open([*LONG, 1])
    flight = cache.flights.begin(cache.manager.match(again), again.root)
    assert flight is not None
    assert all(isinstance(move, Load) for unit in flight.transfer.units for move in unit.moves)
    while not flight.is_over:
        assert {node.key for node in cache.manager.index} == set(flight.landed)
        cache.check()
        cache.flights.collect()
    assert len(flight.landed) == len(flight.transfer.units) == 3
    cache.flights.leave(flight)
    assert cache.admit(again)
    assert again.computed_len == len(LONG)
    cache.compute(again)
    cache.check()


def test_a_matched_block_is_not_evicted_to_load_another() -> None:
    """Trap 13."""
    cache = Cache(full_group(), num_blocks=4)
    stored = cache.computed(list(range(16)))
    cache.store_sequence(stored)
    cache.manager.release(stored)
    cache.computed([50] * 4)
    sequence = cache.open(range(17))
    match = cache.manager.match(sequence)
    assert cache.missing_bytes(match, sequence) == {Tier.DISK: full_group().block_bytes(4)}
    for _ in range(2):
        assert cache.bring(cache.manager.match(sequence), sequence) is None
        cache.check()
    assert cache.matched_len(range(17)) == 16


def test_a_load_that_fails_names_nothing_it_was_meant_to_fill() -> None:
    """Trap 22: a block that did not arrive is free again, and nobody finds it."""
    cache = Cache(full_group(), full_group(1))
    cache.leave_on_disk(LONG)
    cache.tier.unreadable.add(next(iter(cache.tier.contents)))

    sequence = cache.open([*LONG, 1])
    flight = cache.bring(cache.manager.match(sequence), sequence)
    assert flight is not None
    assert not flight.is_complete
    lost = next(iter(cache.tier.unreadable))
    assert cache.manager.index.block(lost[0], lost[1]) is None
    cache.flights.leave(flight)
    assert cache.num_used() == [0, 0]
    cache.check()


def test_what_arrived_behind_a_block_that_cannot_be_read_takes_no_room() -> None:
    """It is read first, and nobody finds it without what it stands behind."""
    cache = Cache(full_group(), sliding_group(1))
    cache.leave_on_disk(LONG)
    cache.tier.unreadable.add((name_of(LONG[:4], 4), GroupId(0)))

    sequence = cache.open([*LONG, 1])
    assert cache.admit(sequence)
    assert sequence.computed_len == 0
    assert not any(GroupId(0) in node.blocks for node in cache.manager.index)
    cache.compute(sequence)
    cache.check()
