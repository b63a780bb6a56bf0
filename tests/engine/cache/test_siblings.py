"""Blocks behind one parent: the one that begins most like a prompt, without looking at all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.engine.api.ids import block_key
from kvchat.engine.cache.prefix_index import Siblings
from kvchat.engine.cache.prefix_matcher import MOST_SIBLINGS, common_run
from tests.engine.cache.caches import ROOT, Cache, full_group
from tests.engine.cache.counting import counted_calls

pytestmark = pytest.mark.pure

ids = st.lists(st.integers(0, 3), min_size=1, max_size=5).map(tuple)


@given(known=st.sets(ids, max_size=30), gone=st.sets(ids), wanted=ids, most=st.integers(1, 4))
def test_the_longest_run_is_among_the_nearest(
    known: set[tuple[int, ...]], gone: set[tuple[int, ...]], wanted: tuple[int, ...], most: int
) -> None:
    siblings = Siblings()
    names = {block_key(ROOT, token_ids): token_ids for token_ids in known}
    for key, token_ids in names.items():
        siblings.add(token_ids, key)
    for token_ids in known & gone:
        siblings.remove(token_ids, block_key(ROOT, token_ids))
    left = known - gone
    nearest = [names[key] for key in siblings.nearest(wanted, most)]
    assert len(siblings) == len(left)
    assert set(nearest) <= left
    assert len(nearest) <= 2 * most
    longest = max((common_run(token_ids, wanted) for token_ids in left), default=0)
    assert max((common_run(token_ids, wanted) for token_ids in nearest), default=0) == longest


@pytest.mark.parametrize("tier", ["device", "host", "disk"])
def test_few_of_many_siblings_are_looked_at(tier: str) -> None:
    cache = Cache(full_group(), num_blocks=300, num_places=300 if tier == "host" else 1)
    for number in range(200):
        sequence = cache.computed([1, 2, 3, 4, 5, 6, number // 16, number % 16])
        if tier == "disk":
            cache.store_sequence(sequence)
        cache.manager.release(sequence)
    if tier != "device":
        cache.forget_device()
    probe = cache.open([1, 2, 3, 4, 5, 6, 7, 99, 99])
    with counted_calls(common_run) as calls:
        match = cache.manager.match(probe)
    assert match.length == 7
    assert 0 < calls["common_run"] <= 4 * MOST_SIBLINGS


def test_of_many_equal_runs_one_on_the_device_is_taken() -> None:
    cache = Cache(full_group(), num_blocks=300)
    for number in range(100):
        cache.store_sequence(sequence := cache.computed([1, 2, 3, 4, 5, 6, number, 0]))
        cache.manager.release(sequence)
    cache.forget_device()
    cache.computed([1, 2, 3, 4, 5, 6, 1000, 0])
    sequence = cache.open([1, 2, 3, 4, 5, 6, 2000, 7])
    match = cache.manager.match(sequence)
    assert match.length == 6
    assert not cache.missing_bytes(match, sequence)
