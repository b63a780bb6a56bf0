"""Requests that wait for room, or for stored blocks, and what is done for them meanwhile."""

import pytest

from kvchat.engine.api.events import Loaded
from kvchat.engine.api.ids import GroupId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_pool import BlockPool
from kvchat.engine.cache.prefix_matcher import PrefixMatcher
from kvchat.engine.formats.spec import Group
from kvchat.engine.memory.rates import Direction
from kvchat.engine.sequences.completion_sequence import Completion
from tests.engine.cache.caches import full_group, sliding_group
from tests.engine.cache.counting import counted_calls
from tests.engine.step_loop import StepLoop, numbers

pytestmark = pytest.mark.pure


# For stored blocks


def test_a_request_at_work_takes_no_block_that_is_on_its_way_to_a_more_important_one() -> None:
    """Otherwise both begin again for ever: one to load, the other to compute what it found."""
    loop = StepLoop(num_blocks=10, max_batch_tokens=16)
    loop.answered_and_stored(numbers(100, 24))
    loop.cache.reader.per_step = 0
    background = loop.submit(numbers(0, 9), max_tokens=12, priority=1)
    loop.step()
    on_screen = loop.submit([*numbers(100, 24), 7], max_tokens=2)
    for _ in range(8):
        loop.step()
    (flight,) = loop.cache.flights.under_way
    assert not flight.job.is_cancelled
    loop.cache.reader.per_step = 1
    loop.finish()
    assert loop.done[1:] == [on_screen, background]
    assert loop.computed(on_screen) == [24, 25]


def test_a_block_that_somebody_has_computed_while_it_was_loaded_is_held_once() -> None:
    loop = StepLoop(num_blocks=10, max_batch_tokens=16)
    loop.answered_and_stored(numbers(0, 16))
    loop.cache.reader.per_step = 0
    loading = loop.submit([*numbers(0, 16), 7])
    loop.step()
    # As if a sequence that found nothing stored had computed the same meanwhile.
    sequence = loop.cache.open([*numbers(0, 16), 8])
    loop.cache.compute(sequence)
    loop.cache.manager.release(sequence)
    loop.cache.reader.per_step = 4
    loop.step()
    assert loop.cache.num_used() <= [6]
    loop.finish()
    assert loading in loop.done
    assert loop.computed(loading) == [16]


def test_what_has_arrived_counts_as_loaded_though_a_window_of_the_same_tokens_is_evicted_meanwhile() -> None:
    loop = StepLoop(full_group(), sliding_group(4), num_blocks=[10, 10], max_batch_tokens=32)
    loop.answered_and_stored(numbers(0, 17))
    manager, flights = loop.cache.manager, loop.cache.flights
    sequence = loop.cache.open(numbers(0, 17))
    loop.cache.compute(sequence)
    manager.release(sequence)
    evict_cached(manager.pools[GroupId(0)])
    loading = loop.submit([*numbers(0, 17), 7])
    loop.step()
    while flights.is_busy:
        flights.wait(0)
        flights.collect()
    evict_cached(manager.pools[GroupId(1)])
    loop.finish()
    assert loading.loaded == Loaded(disk=17)


def test_what_was_computed_beside_a_load_and_lost_again_counts_for_nothing() -> None:
    loop = StepLoop(num_blocks=11, max_batch_tokens=8)
    loop.answered_and_stored(numbers(0, 25))
    loop.assembly.rates.observe_prefill(16, 0, 16 * 0.25)  # a block takes as long to compute as to load
    loop.assembly.rates.observe_move(Tier.DISK, Direction.LOAD, full_group().block_bytes(4), 1.0)
    background = loop.submit([*numbers(0, 25), 7], priority=1)
    for _ in range(2):
        loop.step()
    assert background.limit is not None
    loop.submit(numbers(100, 24), max_tokens=3)
    loop.finish()
    assert len(loop.computed(background)) > 26, "it has begun anew"
    assert background.loaded == Loaded()


def test_what_was_computed_beside_a_load_that_fails_is_not_counted_as_found_after_making_way() -> None:
    loop = StepLoop(num_blocks=12, max_batch_tokens=8)
    loop.answered_and_stored(numbers(0, 41))
    loop.assembly.rates.observe_prefill(16, 0, 16 * 0.25)
    loop.assembly.rates.observe_move(Tier.DISK, Direction.LOAD, full_group().block_bytes(4), 1.0)
    loop.cache.reader.per_step = 0
    background = loop.submit([*numbers(0, 41), 7], priority=1)
    loop.step()
    loop.step()
    loop.submit(numbers(100, 4), max_tokens=3)
    loop.step()
    loop.cache.tier.unreadable |= set(loop.cache.tier.contents)
    loop.cache.reader.per_step = 1
    loop.finish()
    assert loop.computed(background) == numbers(0, 42)
    assert background.loaded == Loaded()


def evict_cached(pool: BlockPool) -> None:
    """Evict what nobody holds."""
    for block in [pool.allocate() for _ in range(pool.num_available)]:
        pool.release(block)


# For room


def crowd(*groups: Group) -> tuple[StepLoop, Completion]:
    """Return answers at work, and a long prompt for which there is no room beside them."""
    loop = StepLoop(*(groups or (full_group(),)), num_blocks=64, max_batch_tokens=200)
    for number in range(4):
        loop.submit([100 * number + token for token in range(40)], max_tokens=20)
    loop.step()
    waiting = loop.submit(list(range(1000, 1150)), max_tokens=2)
    loop.step()
    assert waiting in loop.scheduler.waiting
    return loop, waiting


@pytest.mark.parametrize("groups", [(full_group(),), (full_group(), sliding_group(6))])
def test_a_request_that_waits_for_room_is_not_matched_in_every_step(groups: tuple[Group, ...]) -> None:
    loop, waiting = crowd(*groups)
    with counted_calls(PrefixMatcher.match) as calls:
        for _ in range(15):
            loop.step()
    assert waiting in loop.scheduler.waiting
    assert calls["match"] <= 2
    loop.finish()
    assert waiting in loop.done


def test_a_request_that_waits_is_matched_again_when_its_path_is_being_computed() -> None:
    loop, waiting = crowd()
    loop.cancel(loop.entries[0])
    loop.release(loop.entries[0])
    loop.step()
    other = loop.submit([*waiting.sequence.token_ids[:20], 7], max_tokens=9, priority=-1)
    loop.step()
    assert other in loop.scheduler.running
    with counted_calls(PrefixMatcher.match) as calls:
        loop.step()
        loop.step()
    assert calls["match"] == 2  # once: on all tiers, then on the device


def test_a_request_that_waits_is_matched_again_when_its_rank_changes() -> None:
    loop, waiting = crowd()
    loop.scheduler.prioritise(waiting, -1)
    loop.step()
    assert waiting in loop.scheduler.running


def test_a_request_that_waits_takes_the_room_that_somebody_leaves() -> None:
    loop, waiting = crowd()
    for entry in loop.entries[:3]:
        loop.cancel(entry)
    loop.step()
    assert waiting in loop.scheduler.running
