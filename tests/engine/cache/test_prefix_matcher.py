"""How much of a prompt is found again."""

import pytest

from kvchat.engine.api.snapshot import Tier
from tests.engine.cache.caches import Cache, full_group, name_of, sliding_group

pytestmark = pytest.mark.pure

PROMPT = list(range(100, 130))


def test_a_window_that_is_gone_leaves_the_tail_of_an_earlier_turn() -> None:
    """The full group still has everything; the sliding group has a window only where the first turn ended."""
    cache = Cache(full_group(), sliding_group(4))
    turn = cache.computed(PROMPT[:10])
    cache.store(cache.manager.publisher.block_saves(turn))
    cache.store(cache.manager.tail_saves(turn))
    later = cache.computed(PROMPT[:24])
    cache.store([save for save in cache.manager.publisher.block_saves(later) if save.group == 0])
    for sequence in (turn, later):
        cache.manager.release(sequence)
    cache.forget_device()

    assert cache.matched_len(PROMPT) == 10


@pytest.mark.parametrize("stored_len", [7, 8])
def test_the_run_inside_a_block_comes_from_a_stored_block_or_tail(stored_len: int) -> None:
    cache = Cache(full_group(), sliding_group(2))
    cache.leave_on_disk(PROMPT[:stored_len])
    sequence = cache.open([*PROMPT[:6], 1])
    match = cache.manager.match(sequence)
    assert match.partial is not None
    assert match.partial.blocks == {}
    assert match.length == 6
    num_bytes = 2 * full_group().block_bytes(4) + sliding_group(2).block_bytes(4)
    assert cache.missing_bytes(match, sequence) == {Tier.DISK: num_bytes}


def test_a_tail_is_a_copy_source_and_never_a_parent() -> None:
    cache = Cache(full_group())
    cache.manager.release(cache.computed(PROMPT[:6]))
    assert cache.matched_len(PROMPT) == 6
    match = cache.manager.match(cache.open(PROMPT))
    assert len(match.keys) == 1
    cache.computed(PROMPT[:12])
    full = [node for node in cache.manager.index if len(node.token_ids) == 4]
    assert {node.parent for node in full} <= {cache.manager.root, *(node.key for node in full)}


def test_a_block_with_the_right_key_and_other_ids_is_no_hit() -> None:
    """Trap 4: a hash that collides, on the device and in the slower tier."""
    cache = Cache(full_group())
    cache.computed(PROMPT[:8])
    key = name_of(PROMPT[:8], 4)
    for node in cache.manager.index:
        if node.key == key:
            node.token_ids = (1, 2, 3, 4)
    assert cache.matched_len(PROMPT) == 4


def test_the_match_ends_where_one_full_group_ends() -> None:
    cache = Cache(full_group(), full_group(1))
    sequence = cache.computed(PROMPT[:12])
    keep = sequence.keys[1]
    cache.store(
        [
            save
            for save in cache.manager.publisher.block_saves(sequence)
            if save.group == 0 or save.key != keep
        ]
    )
    cache.manager.release(sequence)
    cache.forget_device()
    assert cache.matched_len(PROMPT) == 4


def test_the_match_ends_where_a_sliding_group_lacks_a_block_of_its_window() -> None:
    """Trap 19: an unaligned window needs one block more."""
    cache = Cache(full_group(), sliding_group(6))
    sequence = cache.computed(PROMPT[:16])
    saves = cache.manager.publisher.block_saves(sequence)
    in_window = [save for save in saves if save.group == 1]
    assert len(in_window) == 2
    cache.store([save for save in saves if save != in_window[0]])
    cache.manager.release(sequence)
    cache.forget_device()
    assert cache.matched_len(PROMPT) == 0


def test_a_match_can_be_kept_short() -> None:
    cache = Cache(full_group(), sliding_group(5))
    cache.computed(PROMPT)
    waiting = cache.open(PROMPT)
    for max_len in range(31):
        assert cache.manager.match(waiting, max_len).length == min(max_len, 29)


def test_loads_are_counted_in_the_blocks_that_some_group_lacks() -> None:
    cache = Cache(full_group(), full_group(1))
    cache.leave_on_disk(PROMPT[:10])
    cache.computed(PROMPT[:4])
    sequence = cache.open(PROMPT)
    match = cache.manager.match(sequence)
    assert match.length == 10
    assert cache.missing_bytes(match, sequence) == {Tier.DISK: 4 * full_group().block_bytes(4)}
