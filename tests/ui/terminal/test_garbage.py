"""Full collections wait until nobody would notice, and the collector is left as it was found."""

import gc
from collections.abc import Iterator

import pytest

from kvchat.ui.terminal.garbage import GarbageSchedule, is_some_frozen

pytestmark = pytest.mark.pure


@pytest.fixture
def full() -> Iterator[list[int]]:
    """The full collections that happen, while Python begins none by itself that is not asked for."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            found.append(1)

    before = gc.get_threshold()
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.set_threshold(*before)
    gc.enable()


def make_a_lot() -> None:
    """Make what collections of the young let through, often enough for a full one to be worth it."""
    gc.collect()
    kept = []
    for _ in range(40):
        kept.append([[] for _ in range(100)])
        gc.collect(1)


def test_a_full_collection_waits_for_a_quiet_moment(full: list[int]) -> None:
    schedule = GarbageSchedule()
    make_a_lot()
    full.clear()
    schedule.look(is_quiet=False)
    kept = [[[] for _ in range(200)] for _ in range(2000)]  # of which Python would collect by itself
    assert full == []
    schedule.look(is_quiet=True)
    assert full == [1]
    schedule.look(is_quiet=True)
    assert full == [1], "nothing is worth it any more"
    assert kept
    schedule.release()


def test_nothing_is_collected_in_a_turn(full: list[int]) -> None:
    schedule = GarbageSchedule()
    schedule.begin_turn()
    make_a_lot()
    full.clear()
    schedule.look(is_quiet=True)
    schedule.end_turn()
    assert full == []
    assert gc.isenabled()
    schedule.look(is_quiet=True)
    assert full == [1]
    schedule.release()


@pytest.fixture(params=[False, True], ids=["all is looked through", "some is not"])
def is_frozen(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether somebody has taken objects out of all collections, as these tests have."""
    gc.unfreeze()
    if request.param:
        gc.freeze()
    is_some_frozen.cache_clear()
    yield request.param
    gc.freeze()
    is_some_frozen.cache_clear()


def test_the_collector_is_left_as_it_was_found(is_frozen: bool) -> None:
    before, num_frozen = (gc.get_threshold(), gc.isenabled()), gc.get_freeze_count()
    schedule = GarbageSchedule()
    kept = [[] for _ in range(1000)]
    schedule.settle()
    schedule.begin_turn()
    assert gc.get_threshold() != before[0]
    assert gc.get_freeze_count() > 0
    for _ in range(2):
        schedule.release()
        assert (gc.get_threshold(), gc.isenabled()) == before
        assert (gc.get_freeze_count() > 0) is is_frozen
        assert gc.get_freeze_count() <= num_frozen
    assert kept
