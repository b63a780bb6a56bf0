"""What a cache manager promises, one promise at a time."""

import pytest

from kvchat.engine.cache.block_operations import Move
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


# Sharing and copy-on-write


def test_ten_forks_add_no_block_until_they_write_and_then_one_per_group_each() -> None:
    cache = Cache(full_group(), sliding_group(12))
    parent = cache.computed(range(50))
    before = cache.num_used()
    children = [cache.manager.fork(parent) for _ in range(10)]
    assert cache.num_used() == before

    for number, child in enumerate(children, start=1):
        child.token_ids.append(3000 + number)
        cache.compute(child)
        assert cache.num_used() == [used + number for used in before]
    cache.check()


@pytest.mark.parametrize("first_writer", ["parent", "child"])
def test_the_first_writer_copies_the_tail_and_the_last_holder_writes_in_place(first_writer: str) -> None:
    """Trap 11: nobody writes through an alias."""
    cache = Cache(full_group(), sliding_group(6))
    parent = cache.computed(LONG[:7])
    child = cache.manager.fork(parent)
    first, last = (parent, child) if first_writer == "parent" else (child, parent)
    shared = [table[1] for table in last.tables]
    first.token_ids += [1, 2, 3]
    last.token_ids += [4, 5, 6]

    moves = cache.manager.extend(first, 3)
    assert moves is not None
    assert [(move.source, move.num_tokens) for move in moves] == [(block, 3) for block in shared]
    cache.run(moves, [(first, 3)])
    moves = cache.manager.extend(last, 3)
    assert moves == ()
    assert [table[1] for table in last.tables] == shared
    cache.run(moves, [(last, 3)])
    cache.check()


def test_sequences_that_share_a_tail_may_write_in_one_step() -> None:
    cache = Cache(full_group(), sliding_group(6))
    sequences = [cache.computed(LONG[:7])]
    sequences += [cache.manager.fork(sequences[0]) for _ in range(3)]
    moves: list[Move] = []
    for number, sequence in enumerate(sequences):
        sequence.token_ids.append(number)
        moves += cache.manager.extend(sequence, 1) or ()
    for tails in zip(*(sequence.tables for sequence in sequences), strict=True):
        assert len({table[1] for table in tails}) == len(sequences), "each writes into a tail of its own"
    assert len(moves) == 2 * len(sequences), "the shared one is a source of that step, and nobody's place"
    cache.run(moves, [(sequence, 1) for sequence in sequences])
    cache.check()


def test_without_room_for_the_copy_nothing_changes() -> None:
    cache = Cache(full_group(), num_blocks=2)
    parent = cache.computed(LONG[:6])
    child = cache.manager.fork(parent)
    child.token_ids.append(1)
    assert cache.manager.extend(child, 1) is None
    assert child.tables == parent.tables
    cache.manager.release(parent)
    assert cache.manager.extend(child, 1) == ()


def test_a_source_that_is_still_to_be_copied_is_not_handed_out() -> None:
    """Trap 21: the sequence that held the source lets go before the copy has run."""
    cache = Cache(full_group(), num_blocks=3)
    parent = cache.computed(LONG[:6])
    child = cache.manager.fork(parent)
    child.token_ids.append(1)
    moves = cache.manager.extend(child, 1)
    assert moves is not None
    cache.manager.release(parent)
    assert cache.manager.extend(cache.open([9]), 1) is None
    cache.run(moves, [(child, 1)])
    cache.check()


# Names


def test_the_same_content_computed_twice_becomes_one_block_and_the_tables_change() -> None:
    """Trap 9: the runner must hear of it."""
    cache = Cache(full_group(), sliding_group(9))
    first, second = cache.open(LONG), cache.open(LONG)
    for sequence in (first, second):
        assert cache.admit(sequence)
    cache.compute(first)
    apart = cache.manager.extend(second, 8)
    assert apart == ()
    own = [tuple(table) for table in second.tables]
    cache.run(apart, [(second, 8)])
    changes, _ = cache.manager.log.take()
    assert [table[:2] for table in second.tables] == [table[:2] for table in first.tables]
    told = {
        (change.group, change.start + offset): block
        for change in changes
        for offset, block in enumerate(change.block_ids)
    }
    for group, blocks in enumerate(own):
        for number, block in enumerate(blocks):
            assert told[group, number] == first.tables[group][number] != block
    cache.device.apply(changes, ())
    cache.compute(second)
    cache.check()


def test_a_full_block_is_named_when_it_is_committed_and_not_before() -> None:
    """Trap 7."""
    cache = Cache(full_group())
    sequence = cache.open(LONG)
    assert cache.admit(sequence)
    cache.manager.extend(sequence, 8)
    assert len(cache.manager.index) == 0
    cache.device.apply(*cache.manager.log.take())
    cache.device.write(sequence, 0, 8)
    cache.manager.commit(sequence, 8)
    assert {node.key for node in cache.manager.index} == set(sequence.keys)


@pytest.mark.parametrize("num_computed", range(11))
def test_a_prompt_that_is_given_up_names_exactly_what_it_has_computed(num_computed: int) -> None:
    """Trap 7: slots are writable, perhaps written in part, when the step is given up."""
    cache = Cache(full_group(), sliding_group(5))
    sequence = cache.open(LONG)
    assert cache.admit(sequence)
    cache.compute(sequence, num_computed, chunk_len=3)
    assert cache.manager.extend(sequence, 11 - num_computed) is not None
    cache.manager.reset(sequence)
    assert cache.matched_len([*LONG, 1]) == num_computed
    cache.check()


def test_an_evicted_block_is_no_longer_found() -> None:
    """Trap 8."""
    cache = Cache(full_group(), num_blocks=3)
    cache.manager.release(cache.computed(LONG))
    cache.computed([1] * 4)
    assert cache.matched_len([*LONG, 1]) == 8
    cache.computed([2] * 8)
    assert cache.matched_len([*LONG, 1]) == 0


def test_eviction_takes_leaves_before_their_parents() -> None:
    """Trap 13: of two conversations with one beginning, the beginning goes last."""
    cache = Cache(full_group(), num_blocks=6)
    older = cache.computed([*LONG[:8], 1, 1, 1, 1])
    newer = cache.computed([*LONG[:8], 2, 2, 2, 2])
    cache.manager.release(newer)
    cache.manager.release(older)
    left = []
    for number in range(6):
        cache.manager.release(cache.computed([50 + number, 1, 1, 1]))
        left.append((cache.matched_len([*older.token_ids, 9]), cache.matched_len([*newer.token_ids, 9])))
    assert left == [(12, 12), (12, 12), (12, 8), (8, 8), (4, 4), (0, 0)]


# Windows


@pytest.mark.parametrize("window_len", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("chunk_len", [1, 2, 4, 7])
def test_a_sequence_holds_no_more_of_a_sliding_group_than_its_window(window_len: int, chunk_len: int) -> None:
    """Trap 15."""
    cache = Cache(full_group(), sliding_group(window_len))
    sequence = cache.open(list(range(40)))
    while sequence.num_uncomputed:
        cache.compute(sequence, min(chunk_len, sequence.num_uncomputed))
        held = [block for block in sequence.tables[1] if block is not None]
        assert len(held) <= -(-window_len // 4) + 1
        assert None not in sequence.tables[0]
    cache.check()


# Room


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


@pytest.mark.parametrize("num_kept", range(1, 8))
def test_what_was_written_behind_the_last_computed_token_is_let_go(num_kept: int) -> None:
    """Trap 14: its blocks are nobody's, and what follows is written over what they held."""
    cache = Cache(full_group(), sliding_group(5), num_blocks=8)
    manager = cache.manager
    sequence = cache.computed([*range(6), 6])
    sequence.token_ids += [7]
    before = cache.num_used()
    guess = [50 + number for number in range(6)]
    moves = manager.extend(sequence, 1 + len(guess))
    assert moves is not None
    cache.carry_out(moves)
    cache.device.apply(*manager.log.take())
    cache.device.write(sequence, 7, 8 + len(guess), guess)
    sequence.token_ids += guess[: num_kept - 1]
    manager.commit(sequence, num_kept)
    manager.retract(sequence)
    assert all(len(table) == -(-(7 + num_kept) // 4) for table in sequence.tables)
    assert cache.num_used()[0] - before[0] == -(-(7 + num_kept) // 4) - 2
    cache.check()
    sequence.token_ids += [90, 91, 92, 93, 94]
    cache.compute(sequence)
    cache.check()
    assert cache.matched_len([*sequence.token_ids, 1]) == len(sequence.token_ids)
    assert cache.matched_len([*range(8), *guess, 1]) == 7 + num_kept


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
