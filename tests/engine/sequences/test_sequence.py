"""Names of a sequence's full blocks are remembered, and never taken for others; where its steps end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.engine.api.ids import BlockKey, block_key, chain_keys
from kvchat.engine.sequences.sequence import KeyChain
from tests.engine.cache.caches import ROOT, Cache, full_group, state_group
from tests.engine.cache.counting import counted_calls

pytestmark = pytest.mark.pure

OTHER_ROOT = BlockKey(bytes(32))


def named(chain: KeyChain, root: BlockKey, token_ids: list[int], block_size: int = 2) -> list[BlockKey]:
    keys: list[BlockKey] = []
    for number in range(len(token_ids) // block_size):
        ids = tuple(token_ids[number * block_size : (number + 1) * block_size])
        keys.append(chain.name(number, keys[-1] if keys else root, ids))
    return keys


@given(
    sequences=st.lists(
        st.tuples(st.sampled_from([ROOT, OTHER_ROOT]), st.lists(st.integers(0, 2), max_size=12)), max_size=6
    )
)
def test_what_is_remembered_is_what_would_be_computed(sequences: list[tuple[BlockKey, list[int]]]) -> None:
    chain = KeyChain()
    for root, token_ids in sequences:
        assert named(chain, root, token_ids) == chain_keys(root, token_ids, 2)


def test_matching_a_sequence_again_hashes_nothing() -> None:
    cache = Cache(full_group())
    cache.manager.release(cache.computed(range(12)))
    sequence = cache.open(range(30))
    with counted_calls(block_key) as first:
        match = cache.manager.match(sequence)
    with counted_calls(block_key) as second:
        assert cache.manager.match(sequence) == match
    assert (first["block_key"], second["block_key"]) == (29 // 4, 0)


def test_a_block_that_was_matched_is_not_hashed_when_it_is_computed() -> None:
    cache = Cache(full_group())
    sequence = cache.open(range(30))
    assert cache.admit(sequence)
    with counted_calls(block_key) as calls:
        cache.compute(sequence, 28)
    assert calls["block_key"] == 0


def test_what_is_appended_is_all_that_is_hashed() -> None:
    cache = Cache(full_group())
    sequence = cache.open(range(30))
    cache.manager.match(sequence)
    sequence.token_ids += range(30, 38)
    with counted_calls(block_key) as calls:
        cache.manager.match(sequence)
    assert calls["block_key"] == 37 // 4 - 29 // 4


def test_steps_end_at_whole_pieces_but_for_the_last_one() -> None:
    sequence = Cache(full_group(), state_group()).open(range(30))
    sequence.piece, sequence.snapshots_at = 4, (8, 12, 20)
    assert sequence.step_len(21, 30) == 20
    assert sequence.step_len(3, 30) == 3, "less than a piece where there is room for no more"
    assert sequence.snapshots_within(20) == (8, 12), "the last one stands at its end"
    sequence.computed_len = 8
    assert sequence.snapshots_within(20) == (12, 20)
    sequence.computed_len = 6
    assert sequence.step_len(20, 24) == 18
    assert sequence.step_len(24, 24) == 24, "to the end"
