"""What the cache notes of its own moves, and why each happened."""

import pytest

from kvchat.engine.api.cache_events import MOST_EVENTS, TOGETHER_S, CacheEventKind, CacheEventLog
from kvchat.engine.api.ids import GroupId
from kvchat.engine.api.snapshot import Tier
from tests.engine.cache.caches import Cache, full_group, sliding_group
from tests.hand_clock import HandClock

pytestmark = pytest.mark.pure

LONG = list(range(100, 111))
HIT, MISS, LOAD, EVICT, COPY = (
    CacheEventKind.HIT,
    CacheEventKind.MISS,
    CacheEventKind.LOAD,
    CacheEventKind.EVICT,
    CacheEventKind.COPY,
)
SEAL, SHARE, LEAVE = CacheEventKind.SEAL, CacheEventKind.SHARE, CacheEventKind.LEAVE


def noted(cache: Cache, start: int = 0) -> list[tuple[str, str, int]]:
    return [
        (event.kind, event.reason, event.num_blocks) for event in cache.manager.device.events.since(start)
    ]


def test_a_prompt_is_a_miss_and_then_a_hit_and_what_it_fills_is_sealed_for_its_owner() -> None:
    cache = Cache(full_group())
    first = cache.computed(LONG)
    cache.manager.release(first)
    cache.admit(cache.open([*LONG[:8], 1, 2]))
    miss, sealed, tail, hit = cache.manager.device.events.since()
    assert (miss.kind, miss.num_tokens, miss.num_blocks) == (MISS, 11, 0)
    assert (sealed.kind, sealed.reason, sealed.num_blocks) == (SEAL, "it is full", 2)
    assert (tail.kind, tail.num_blocks) == (SEAL, 1)
    assert (hit.kind, hit.num_tokens, hit.num_blocks) == (HIT, 8, 2)
    assert {event.owner for event in (miss, sealed, tail, hit)} == {"someone"}
    assert [event.number for event in (miss, sealed, tail, hit)] == [1, 2, 3, 4]


def test_an_eviction_says_whether_host_memory_takes_the_block_and_what_it_loses_for_it() -> None:
    cache = Cache(full_group(), num_blocks=4, num_places=2)
    for first in (0, 100, 200):
        cache.manager.release(cache.computed(range(first, first + 16)))
    evicted = [event for event in cache.manager.device.events.since() if event.kind is EVICT]
    assert {(event.reason, event.tier) for event in evicted} >= {
        ("new blocks needed its place", Tier.HOST),
        ("host memory needed its place", None),
    }
    assert sum(event.num_blocks for event in evicted if event.reason.startswith("new")) == 8
    size = cache.manager.device.block_bytes[GroupId(0)]
    assert all(event.num_bytes == event.num_blocks * size for event in evicted)


def test_a_load_says_which_tier_it_came_from_and_a_block_that_is_gone_that_it_is_computed() -> None:
    cache = Cache(full_group())
    cache.leave_on_disk(LONG)
    start = len(cache.manager.device.events.since()) + 1
    cache.admit(cache.open([*LONG, 1]))
    load = next(event for event in cache.manager.device.events.since(start) if event.kind is LOAD)
    assert (load.reason, load.tier, load.num_blocks, load.num_tokens) == (
        "a request waits for it",
        Tier.DISK,
        3,
        11,
    )
    cache = Cache(full_group())
    cache.leave_on_disk(LONG)
    cache.tier.unreadable.add(next(iter(cache.tier.contents)))
    cache.admit(cache.open([*LONG, 1]))
    assert (LOAD, "damaged or gone: it is computed", 1) in noted(cache)


def test_copies_windows_and_content_that_is_there_already_are_noted() -> None:
    cache = Cache(full_group(), sliding_group(4))
    one = cache.computed(LONG)
    two = cache.manager.fork(one)
    start = len(cache.manager.device.events.since()) + 1
    for branch in (one, two):
        branch.token_ids += [1] * 6
        cache.compute(branch)
    kinds = {kind: reason for kind, reason, _ in noted(cache, start)}
    assert kinds[COPY] == "another branch holds this tail"
    assert kinds[SHARE] == "the same block is cached already"
    assert kinds[LEAVE] == "it left the window"


def test_what_is_alike_and_close_together_is_one_event_and_the_oldest_give_way() -> None:
    clock = HandClock()
    log = CacheEventLog({GroupId(0): 10}, clock=clock)
    for _ in range(3):
        log.note(SEAL, "full", GroupId(0))
        clock.now_s += TOGETHER_S / 2
    clock.now_s += TOGETHER_S * 2
    log.note(SEAL, "full", GroupId(0))
    assert [(one.number, one.num_blocks, one.num_bytes) for one in log.since()] == [(1, 3, 30), (2, 1, 10)]
    taken = log.since(2)
    log.note(SEAL, "full", GroupId(0))
    assert [one.num_blocks for one in (*taken, *log.since(2))] == [1, 2]
    for number in range(MOST_EVENTS):
        log.note(SEAL, str(number))
    assert [log.since()[0].number, len(log.since())] == [3, MOST_EVENTS]
