"""How the estimate of right guesses follows what is seen."""

import pytest

from kvchat.engine.sampling.speculative.acceptance_rate import PRIORS, AcceptanceRate

pytestmark = pytest.mark.pure


def fed(acceptance: AcceptanceRate, match_len: int, is_right: bool, num_times: int) -> AcceptanceRate:
    for _ in range(num_times):
        acceptance.observe(match_len, is_right)
    return acceptance


def test_it_goes_to_what_is_seen_and_follows_when_that_changes() -> None:
    estimate = fed(AcceptanceRate(), 2, True, 100)
    assert estimate.probability(2) > 0.95
    fed(estimate, 2, False, 100)
    assert estimate.probability(2) < 0.05


def test_long_agreement_is_told_from_short() -> None:
    estimate = fed(fed(AcceptanceRate(), 2, False, 50), 12, True, 50)
    assert estimate.probability(2) < 0.2
    assert estimate.probability(12) > 0.9


def test_before_anything_is_seen_longer_agreement_is_believed_more() -> None:
    assert [AcceptanceRate().probability(match_len) for match_len in (2, 3, 4, 6, 10, 18)] == list(PRIORS)
    assert AcceptanceRate().probability(10_000) == PRIORS[-1]


def test_a_new_sequence_begins_with_what_others_have_shown() -> None:
    others = AcceptanceRate()
    fed(AcceptanceRate(others), 3, False, 200)
    begun = AcceptanceRate(others)
    assert begun.probability(3) < 0.05
    assert fed(begun, 3, True, 10).probability(3) > 0.5
