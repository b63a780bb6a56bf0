"""The state snapshot goes first without which fewest tokens are computed, unless it was used lately."""

import pytest

from kvchat.engine.api.ids import BlockId, BlockKey
from kvchat.engine.cache.eviction import SnapshotOrder

pytestmark = pytest.mark.pure


def path(blocks: str) -> tuple[BlockKey, ...]:
    """Return a root and blocks of 500 tokens, by one letter each."""
    return tuple(BlockKey(blocks[:end].encode().ljust(32)) for end in range(len(blocks) + 1))


class Requests:
    num = 0


def order_of(*snapshots: tuple[int, str]) -> tuple[SnapshotOrder, Requests]:
    """Return cached snapshots, each with its tokens and the full blocks before it; they count from 0."""
    requests = Requests()
    order = SnapshotOrder(lambda: requests.num)
    for number, (num_tokens, blocks) in enumerate(snapshots):
        order.note(BlockId(number), num_tokens, path(blocks))
        order.add(BlockId(number), path(blocks)[-1])
    return order, requests


def victims(order: SnapshotOrder) -> list[int]:
    found = []
    while len(order):
        found.append(order.victim(lambda _: True))
        order.forget(found[-1])
    return found


def test_the_smallest_gap_to_the_one_below_goes_first() -> None:
    order, _ = order_of((1000, "a"), (1100, "ab"), (1400, "ab"))
    assert victims(order)[0] == 1


def test_what_stood_above_one_that_went_takes_its_place_in_the_chain() -> None:
    order, _ = order_of((1000, "a"), (1050, "ab"), (1400, "ab"), (500, "x"))
    assert victims(order) == [1, 2, 3, 0], "the second saves 50 tokens, the third then 400, the last 500"


def test_one_that_comes_between_others_is_below_the_upper_one() -> None:
    order, _ = order_of((1400, "ab"), (450, ""), (1100, "ab"))
    assert [order.gap(BlockId(number)) for number in range(3)] == [(1100, 1400), (0, 450), (450, 1100)]


def test_one_on_another_path_is_below_none() -> None:
    order, _ = order_of((600, "x"), (1300, "ab"), (700, "a"))
    assert order.gap(BlockId(1)) == (700, 1300)
    assert order.gap(BlockId(0)) == (0, 600)


def test_what_was_used_lately_stays_longer() -> None:
    order, requests = order_of((500, "a"), (400, ""))
    requests.num = 10
    order.touch(BlockId(1))
    assert victims(order) == [0, 1]


def test_what_is_held_is_no_victim() -> None:
    order, _ = order_of((64, ""), (640, "a"))
    order.remove(BlockId(0))
    assert BlockId(0) not in order
    assert victims(order) == [1]
