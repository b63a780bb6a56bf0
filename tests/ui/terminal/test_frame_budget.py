"""What streams is drawn as often as its share of the processor allows, and never seldom."""

import pytest

from kvchat.ui.terminal.render_loop import LONGEST_S, FrameBudget
from tests.hand_clock import HandClock

pytestmark = pytest.mark.pure


def test_a_drawing_that_takes_a_hundredth_of_a_second_comes_ten_times_a_second_at_a_tenth() -> None:
    clock, spent = HandClock(), HandClock()
    pace = FrameBudget(0.1, clock, spent)
    pace.begin()
    spent.now_s = 0.01
    clock.now_s = 0.09
    assert not pace.is_due
    clock.now_s = 0.101
    assert pace.is_due
    pace.begin()
    assert pace.is_due, "nothing was spent since"


def test_however_dear_it_is_text_comes_some_times_a_second() -> None:
    clock, spent = HandClock(), HandClock()
    pace = FrameBudget(0.1, clock, spent)
    pace.begin()
    spent.now_s = 60.0
    assert not pace.is_due
    clock.now_s = LONGEST_S
    assert pace.is_due
