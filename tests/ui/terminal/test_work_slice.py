"""So much is done at a time that it takes about as long as nobody notices."""

import pytest

from kvchat.ui.widgets.transcript import BUDGET_S, WorkSlice
from tests.hand_clock import HandClock

pytestmark = pytest.mark.pure


def after(portion: WorkSlice, clock: HandClock, each_s: float) -> int:
    """Do what it says once, at so many seconds each, and return what it says then."""
    portion.begin(portion.num)
    clock.now_s += portion.num * each_s
    portion.end()
    return portion.num


def test_it_comes_to_what_takes_the_budget() -> None:
    clock = HandClock()
    portion = WorkSlice(clock)
    assert [after(portion, clock, BUDGET_S / 10) for _ in range(4)] == [8, 10, 10, 10]


def test_two_at_least_are_done_however_long_it_takes_and_more_when_they_are_short_again() -> None:
    clock = HandClock()
    portion = WorkSlice(clock)
    assert after(portion, clock, 9.0) == 2
    assert [after(portion, clock, BUDGET_S / 6) for _ in range(3)] == [4, 6, 6]
