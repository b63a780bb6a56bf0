"""The state snapshot goes first without which fewest tokens are computed, unless it was used lately."""

import pytest

from kvchat.engine.api.ids import BlockId, BlockKey
from kvchat.engine.cache.eviction import SnapshotOrder

pytestmark = pytest.mark.pure


def key(name: str) -> BlockKey:
    return BlockKey(name.encode().ljust(32))


class Requests:
    num = 0


def order_of(*snapshots: tuple[str, int, str | None]) -> tuple[SnapshotOrder, Requests]:
    """Return cached snapshots, each with its name, its tokens and the one below it; blocks count from 0."""
    requests = Requests()
    order = SnapshotOrder(lambda: requests.num)
    for number, (name, num_tokens, below) in enumerate(snapshots):
        order.note(BlockId(number), key(name), num_tokens, key(below) if below else None)
        order.add(BlockId(number), key(name))
    return order, requests


def victims(order: SnapshotOrder) -> list[int]:
    found = []
    while len(order):
        found.append(order.victim(lambda _: True))
        order.forget(found[-1])
    return found


def test_the_smallest_gap_to_the_one_below_goes_first() -> None:
    order, _ = order_of(("a", 1000, None), ("b", 1100, "a"), ("c", 1400, "b"))
    assert victims(order)[0] == 1


def test_what_stood_above_one_that_went_takes_its_place_in_the_chain() -> None:
    order, _ = order_of(("a", 1000, None), ("b", 1050, "a"), ("c", 1400, "b"), ("d", 500, None))
    assert victims(order) == [1, 2, 3, 0], "b saves 50 tokens, c 400 then, d 500, a 1,000"


def test_what_was_used_lately_stays_longer() -> None:
    order, requests = order_of(("a", 500, None), ("b", 400, None))
    requests.num = 10
    order.touch(BlockId(1))
    assert victims(order) == [0, 1]


def test_what_is_held_is_no_victim() -> None:
    order, _ = order_of(("a", 64, None), ("b", 640, None))
    order.remove(BlockId(0))
    assert BlockId(0) not in order
    assert victims(order) == [1]
