"""What is known of the time of steps with drafts."""

import pytest

from kvchat.engine.sampling.speculative.step_costs import LEAST, WINDOW, StepCosts

pytestmark = pytest.mark.pure


def timed(
    costs: StepCosts, num_drafted: int, *seconds: float, num_sequences: int = 1, keys: int = 900
) -> None:
    for each in seconds:
        costs.observe(num_sequences, keys, num_drafted, each)


def test_nothing_is_known_before_a_kind_was_measured_a_few_times() -> None:
    costs = StepCosts()
    timed(costs, 0, *[1.0] * LEAST)
    timed(costs, 4, *[1.5] * (LEAST - 1))
    assert costs.plain_s(1, 900) == 1.0
    assert costs.relative(1, 900, 4) is None
    timed(costs, 4, 1.5)
    assert costs.relative(1, 900, 4) == 1.5


def test_drafts_of_about_one_length_are_one_kind() -> None:
    costs = StepCosts()
    timed(costs, 0, *[1.0] * LEAST)
    timed(costs, 5, *[2.0] * LEAST)
    assert [costs.relative(1, 900, length) for length in (4, 5, 8, 9)] == [None, 2.0, 2.0, None]


def test_one_slow_step_changes_nothing_and_many_do() -> None:
    costs = StepCosts()
    timed(costs, 0, 1.0, 1.0, 50.0, 1.0)
    assert costs.plain_s(1, 900) == 1.0
    timed(costs, 0, *[3.0] * WINDOW)
    assert costs.plain_s(1, 900) == 3.0


def test_the_nearest_length_counts_and_both_sides_come_from_one() -> None:
    costs = StepCosts()
    timed(costs, 0, *[1.0] * LEAST, keys=100)
    timed(costs, 2, *[2.0] * LEAST, keys=100)
    timed(costs, 0, *[10.0] * LEAST, keys=100_000)
    timed(costs, 2, *[11.0] * LEAST, keys=100_000)
    assert costs.relative(1, 200, 2) == 2.0
    assert costs.relative(1, 50_000, 2) == 1.1
    timed(costs, 0, *[7.0] * LEAST, keys=200)
    assert costs.relative(1, 200, 2) == 2.0
