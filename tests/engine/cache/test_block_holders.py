"""What is kept as a count is what a walk over all blocks would find, and asking for it walks nothing."""

import pytest

from kvchat.engine import usage_snapshot
from kvchat.engine.cache.block_holders import BlockHolders
from kvchat.engine.cache.block_pool import BlockPool
from tests.engine.cache.caches import Cache, full_group, sliding_group
from tests.engine.cache.counting import counted_calls

pytestmark = pytest.mark.pure


def walked(cache: Cache) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return own bytes, shared bytes and blocks per group of each sequence, block by block."""
    found = []
    for sequence in cache.manager.sequences.values():
        own = shared = 0
        per_group = []
        for group in cache.manager.groups:
            blocks = [block for block in sequence.tables[group.id] if block is not None]
            counts = [cache.manager.pools[group.id].count(block) for block in blocks]
            size = group.block_bytes(cache.manager.block_size)
            own += size * counts.count(1)
            shared += size * (len(counts) - counts.count(1))
            per_group.append(len(blocks))
        found.append((own, shared, tuple(per_group)))
    return found


def usages(cache: Cache) -> list[tuple[int, int, tuple[int, ...]]]:
    found = usage_snapshot.sequence_usages(cache.manager, ())
    return [(usage.own_bytes, usage.shared_bytes, usage.blocks_per_group) for usage in found]


def test_a_snapshot_tells_of_every_sequence_what_a_walk_finds() -> None:
    """Through a fork, a copy before a write, a window that moves on, a transfer and a sequence that lets
    go."""
    cache = Cache(full_group(), sliding_group(5))
    parent = cache.computed(range(10))
    child = cache.manager.fork(parent)
    assert usages(cache) == walked(cache)
    child.token_ids += range(50, 60)
    moves = cache.manager.extend(child, 10)
    assert moves is not None
    assert usages(cache) == walked(cache)
    cache.run(moves, [(child, 10)])
    assert usages(cache) == walked(cache)
    cache.store_sequence(parent)
    cache.manager.release(parent)
    assert usages(cache) == walked(cache)
    other = cache.open([*range(10), 7])
    flight = cache.bring(cache.manager.match(other), other)
    assert flight is not None
    assert usages(cache) == walked(cache)
    cache.flights.leave(flight)
    assert usages(cache) == walked(cache)


def test_asking_for_a_long_sequence_costs_no_more_than_for_a_short_one() -> None:
    num_calls = []
    for length in (8, 400):
        cache = Cache(full_group(), sliding_group(5), num_blocks=128)
        cache.manager.fork(cache.computed(range(length)))
        with counted_calls(BlockPool.count, BlockHolders.num_held, BlockHolders.num_shared) as calls:
            usages(cache)
        num_calls.append(calls.total())
    assert num_calls[0] == num_calls[1]
