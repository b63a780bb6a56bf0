"""What a cache manager promises, one promise at a time."""

import pytest

from tests.engine.cache.caches import Cache, full_group, sliding_group, state_group

pytestmark = pytest.mark.pure

LONG = list(range(100, 111))


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


def test_what_left_a_window_first_is_evicted_first() -> None:
    """So that what is left serves the longest prefixes."""
    cache = Cache(full_group(), sliding_group(8), num_blocks=[40, 12])
    cache.computed(range(40))
    cache.computed(range(900, 924))
    assert [cache.matched_len([*range(length), 1]) for length in (20, 24, 28, 36)] == [0, 24, 28, 36]


def test_a_fork_does_not_share_blocks_that_a_step_has_left_unwritten() -> None:
    """Trap 11: both sequences would write them."""
    cache = Cache(full_group())
    parent = cache.computed(LONG[:6])
    parent.token_ids += LONG[6:]
    assert cache.manager.extend(parent, 5) is not None
    child = cache.manager.fork(parent)
    cache.compute(parent, 5)
    child.token_ids[6:] = [1, 2, 3, 4, 5]
    cache.compute(child)
    cache.check()


def test_a_fork_of_an_empty_sequence_is_no_copy_source_for_what_it_computes_later() -> None:
    """Traps 8 and 28: its tail would be taken for the beginning of a conversation, in any namespace."""
    cache = Cache(full_group())
    parent = cache.computed(LONG[:10])
    cache.manager.reset(parent)
    child = cache.manager.fork(parent)
    assert cache.admit(child)
    cache.compute(child)
    cache.check()
    stranger = cache.open([*child.token_ids[8:], 1])
    assert not cache.manager.match(stranger).length


def test_a_sequence_left_before_its_first_step_is_no_copy_source_for_what_it_finds_later() -> None:
    """Traps 8 and 28: admitted with nothing, cancelled, and asked again when others have computed it."""
    cache = Cache(full_group())
    sequence = cache.open(LONG[:10])
    assert cache.admit(sequence)
    cache.computed(LONG[:10])
    assert cache.admit(sequence)
    cache.compute(sequence)
    cache.check()
    stranger = cache.open([*sequence.token_ids[8:], 1])
    assert not cache.manager.match(stranger).length


def test_without_room_for_the_copy_nothing_changes() -> None:
    cache = Cache(full_group(), num_blocks=2)
    parent = cache.computed(LONG[:6])
    child = cache.manager.fork(parent)
    child.token_ids.append(1)
    assert cache.manager.extend(child, 1) is None
    assert child.tables == parent.tables
    cache.manager.release(parent)
    assert cache.manager.extend(child, 1) == ()


def test_an_admission_can_ask_for_room_behind_what_it_finds() -> None:
    cache = Cache(full_group(), num_blocks=4)
    cache.manager.release(cache.computed(LONG[:8]))
    sequence = cache.open([*LONG[:8], *range(20)])
    match = cache.manager.match(sequence)
    assert match.length == 8
    assert cache.manager.admit(sequence, match, num_following=9) is None
    assert cache.num_used() == [0]
    assert cache.manager.admit(sequence, match, num_following=8) == ()


def test_sequences_that_come_and_go_between_two_batches_leave_nothing_to_tell() -> None:
    cache = Cache(full_group(), sliding_group(5))
    sequence = cache.computed(range(10))
    cache.manager.log.take()
    for _ in range(100):
        cache.manager.release(cache.manager.fork(sequence))
        cache.matched_len(range(10))
    assert cache.manager.log.take() == ((), ())
    cache.manager.release(sequence)
    assert cache.manager.log.take() == ((), (sequence.id,))


def test_a_state_that_was_saved_behind_a_full_block_is_no_tail_that_the_next_one_takes_the_place_of() -> None:
    cache = Cache(full_group(), state_group())
    sequence = cache.computed(LONG[:8])
    cache.store(cache.manager.take_saves())
    cache.store_sequence(sequence)
    for num_more in (2, 4):  # a tail, and the block that it becomes
        sequence.token_ids += range(num_more)
        cache.compute(sequence)
        cache.store(cache.manager.take_saves())
        cache.store(cache.manager.tail_saves(sequence))
    cache.manager.release(sequence)
    cache.forget_device()
    assert cache.matched_len([*LONG[:8], 0, 1, 0, 1, 2, 3, 9]) >= 8


def test_a_step_that_other_groups_have_no_room_for_keeps_the_places_of_its_snapshots() -> None:
    cache = Cache(full_group(), state_group(), num_blocks=[4, 8])
    cache.computed(range(900, 909))  # holds three blocks of four
    sequence = cache.open(LONG)
    assert cache.admit(sequence)
    planned = sequence.snapshots_at
    assert planned == (10,)
    assert cache.manager.extend(sequence, 11) is None
    assert sequence.snapshots_at == planned
