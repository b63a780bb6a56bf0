"""Estimates of computing and moving: what was measured counts, one odd measurement does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.engine.api.snapshot import Tier
from kvchat.engine.memory.rates import LEAST_TOKENS, Direction, Rates

pytestmark = pytest.mark.pure


def test_before_the_first_measurement_loading_a_block_is_taken_to_be_faster_than_computing_it() -> None:
    """A block that is kept in vain costs memory, one that is dropped in vain costs a wait."""
    rates = Rates()
    block_bytes = 4 * 2**20  # 64 tokens of a model with a few billion weights
    assert 0 < rates.seconds_to_load(Tier.HOST, block_bytes) < rates.seconds_to_load(Tier.DISK, block_bytes)
    assert rates.seconds_to_load(Tier.DISK, block_bytes) < rates.seconds_to_compute(64)


def test_each_tier_and_direction_is_estimated_by_itself() -> None:
    rates = Rates()
    rates.observe_move(Tier.HOST, Direction.LOAD, 1000, 1.0)
    rates.observe_move(Tier.HOST, Direction.STORE, 1000, 2.0)
    rates.observe_move(Tier.DISK, Direction.LOAD, 1000, 3.0)
    rates.observe_move(Tier.DISK, Direction.STORE, 1000, 4.0)
    figures = [rates.seconds_to_load(tier, 1000) for tier in (Tier.HOST, Tier.DISK)]
    assert figures == pytest.approx([1.0, 3.0])
    stores = [rates.measured().moves[tier, Direction.STORE] for tier in (Tier.HOST, Tier.DISK)]
    assert stores == [(0.002,), (0.004,)]


def test_one_odd_measurement_among_many_changes_nothing() -> None:
    rates = Rates()
    for seconds in (1.0, 1.0, 500.0, 1.0, 1e-9):
        rates.observe_prefill(100, 0, seconds)
        rates.observe_move(Tier.HOST, Direction.LOAD, 100, seconds)
    assert rates.seconds_to_compute(100) == pytest.approx(1.0)
    assert rates.seconds_to_load(Tier.HOST, 100) == pytest.approx(1.0)


def test_tokens_far_into_a_conversation_cost_what_was_measured_there() -> None:
    rates = Rates()
    rates.observe_prefill(64, 0, 0.64)
    rates.observe_prefill(64, 4096, 6.4)
    assert rates.seconds_to_compute(64, 0) == pytest.approx(0.64)
    assert rates.seconds_to_compute(64, 4096) == pytest.approx(6.4)
    assert rates.seconds_to_compute(64, 100_000) == pytest.approx(6.4)
    assert 0.64 < rates.seconds_to_compute(64 * 64, 0) / 64 < 6.4


def test_a_decode_step_says_nothing_about_prefill() -> None:
    rates, untouched = Rates(), Rates()
    rates.observe_prefill(LEAST_TOKENS - 1, 0, 100.0)
    rates.observe_prefill(100, 0, 0.0)
    rates.observe_move(Tier.HOST, Direction.LOAD, 0, 1.0)
    rates.observe_move(Tier.HOST, Direction.LOAD, 100, 0.0)
    assert rates.seconds_to_compute(64) == untouched.seconds_to_compute(64)
    assert rates.seconds_to_load(Tier.HOST, 64) == untouched.seconds_to_load(Tier.HOST, 64)


@given(
    measured=st.lists(st.tuples(st.integers(8, 600), st.integers(0, 9000), st.floats(1e-4, 50)), max_size=20),
    context_len=st.integers(0, 9000),
    left=st.integers(0, 3000),
    right=st.integers(0, 3000),
)
def test_computing_a_span_costs_as_much_as_computing_its_parts(
    measured: list[tuple[int, int, float]], context_len: int, left: int, right: int
) -> None:
    rates = Rates()
    for num_tokens, start, seconds in measured:
        rates.observe_prefill(num_tokens, start, seconds)
    whole = rates.seconds_to_compute(left + right, context_len)
    parts = rates.seconds_to_compute(left, context_len) + rates.seconds_to_compute(right, context_len + left)
    assert whole == pytest.approx(parts)
