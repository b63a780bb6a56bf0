"""Pins: kept whatever happens, or refused with the numbers."""

import pytest

from kvchat.engine.api.ids import GroupId
from kvchat.errors import PinRefused
from tests.engine.cache.caches import Cache, full_group, state_group

pytestmark = pytest.mark.pure

FULL = GroupId(0)


def test_the_state_before_the_end_of_pinned_blocks_is_pinned_too() -> None:
    cache = Cache(full_group(), state_group(), num_blocks=16)
    for last in (90, 50):  # both leave a state within the third block
        sequence = cache.computed([*range(10), last])
        cache.manager.release(sequence)
    sequence = cache.computed([*range(10), 50, 60, 61, 62])
    assert cache.manager.pins.pin(sequence) == 3 + 1
    cache.manager.release(sequence)
    cache.forget_device()
    assert cache.matched_len([*range(10), 50, 60, 99]) == 11
    cache.check()


def test_a_pin_covers_what_is_there_and_pinning_again_what_has_been_added() -> None:
    cache = Cache(full_group(), num_blocks=16)
    sequence = cache.computed(range(9))
    assert cache.manager.pins.pin(sequence) == 2
    sequence.token_ids += range(9, 21)
    cache.compute(sequence)
    assert cache.manager.pins.num_pinned(FULL) == 2
    for _ in range(2):
        assert cache.manager.pins.pin(sequence) == 5
    assert cache.manager.pins.num_pinned(FULL) == 5
    cache.check()


def test_more_than_half_of_a_pool_is_refused_and_nothing_changes() -> None:
    cache = Cache(full_group(), num_blocks=10)
    small, large = cache.computed(range(9)), cache.computed(range(100, 117))
    cache.manager.pins.pin(small)
    with pytest.raises(PinRefused, match="4 blocks cannot be pinned: 6 would be in all, and at most 5 of 10"):
        cache.manager.pins.pin(large)
    assert cache.manager.pins.num_pinned(FULL) == 2
    cache.manager.pins.unpin(large.id)
    assert cache.manager.pins.num_pinned(FULL) == 2
    cache.check()


def test_a_pin_that_leaves_too_little_for_a_request_at_work_is_refused_with_its_needs() -> None:
    cache = Cache(full_group(), num_blocks=10)
    idle, at_work = cache.computed(range(17)), cache.open([7])
    with pytest.raises(PinRefused, match="a request at work needs 8 of 10, which leaves 2"):
        cache.manager.pins.pin(idle, [(at_work, {FULL: 8})])
    assert cache.manager.pins.pin(idle, [(at_work, {FULL: 6})]) == 4
    # What a request holds itself is a part of its needs.
    assert cache.manager.pins.pin(idle, [(idle, {FULL: 10})]) == 4


def test_pinned_blocks_of_others_are_counted_for_a_prompt() -> None:
    cache = Cache(full_group(), num_blocks=20)
    first, second = cache.computed([*range(8), 50]), cache.computed(range(100, 113))
    cache.manager.pins.pin(first)
    cache.manager.pins.pin(second)
    assert cache.manager.pins.num_others(FULL, []) == 5
    assert cache.manager.pins.num_others(FULL, first.keys) == 3
