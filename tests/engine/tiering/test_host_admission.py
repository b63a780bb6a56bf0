"""Demote or drop: whichever is cheaper, by what was measured."""

import pytest

from kvchat.engine.api.ids import BlockKey
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.prefix_index import IndexNode
from kvchat.engine.memory.rates import Direction, Rates
from kvchat.engine.tiering.idle_demotion import HostAdmission
from tests.engine.cache.caches import Cache, full_group, sliding_group

pytestmark = pytest.mark.pure


def node(start: int = 0, num_tokens: int = 4) -> IndexNode:
    return IndexNode(BlockKey(bytes(32)), BlockKey(bytes(32)), tuple(range(num_tokens)), start)


def test_a_block_is_kept_where_loading_it_is_faster_and_dropped_where_computing_is() -> None:
    rates = Rates()
    worth = HostAdmission(rates, [full_group(), sliding_group(5)], 4)
    block_bytes = full_group().block_bytes(4) + sliding_group(5).block_bytes(4)
    rates.observe_move(Tier.HOST, Direction.LOAD, block_bytes, 1.0)
    rates.observe_prefill(40, 0, 9.0)  # 0.9 s for a block
    assert not worth.in_host(node())
    assert not worth.in_host(node(num_tokens=3))
    rates.observe_prefill(40, 4000, 12.0)  # further into a conversation: 1.2 s
    assert worth.in_host(node(start=4000))
    assert not worth.in_host(node())


def evict_all(*, worthy: bool) -> Cache:
    cache = Cache(full_group(), num_blocks=8, num_places=8, is_worth=lambda _: worthy)
    cache.manager.release(cache.computed(range(14)))
    cache.forget_device()
    return cache


def test_what_is_cheaper_to_compute_takes_no_place_in_host_memory() -> None:
    assert evict_all(worthy=True).matched_len([*range(14), 99]) == 14
    cheap = evict_all(worthy=False)
    assert cheap.matched_len([*range(14), 99]) == 0
    assert not any(pool.num_cached for pool in cheap.manager.host.pools.values())


def test_the_parents_of_a_block_that_is_kept_are_kept_too() -> None:
    """Without its beginning a chain is worth nothing, however cheap the beginning is to compute."""
    cache = Cache(full_group(), num_blocks=8, num_places=8, is_worth=lambda node: node.start == 8)
    cache.manager.release(cache.computed(range(14)))
    cache.forget_device()
    assert cache.matched_len([*range(14), 99]) == 12
    cache.check()
