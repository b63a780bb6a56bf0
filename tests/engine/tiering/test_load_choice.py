"""Load, compute or both: the choice follows the measured rates, and the split is the best there is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.engine.api.events import LoadChoice, LoadEstimate
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.memory.rates import Direction, Rates
from kvchat.engine.tiering.load_choice import meeting, weigh

pytestmark = pytest.mark.pure

BLOCK_BYTES = 2**20


@given(
    num_blocks=st.integers(0, 60),
    first_s=st.floats(0.001, 5),
    growth_s=st.floats(0, 0.5),
    load_s=st.floats(0.001, 5),
)
def test_no_other_split_ends_earlier(num_blocks: int, first_s: float, growth_s: float, load_s: float) -> None:
    def compute_s(num: int) -> float:
        return sum(first_s + growth_s * block for block in range(num))

    def end_s(split: int) -> float:
        return max(compute_s(split), (num_blocks - split) * load_s)

    split = meeting(num_blocks, compute_s, load_s)
    assert end_s(split) == min(map(end_s, range(num_blocks + 1)))


def estimate(token_s: float, block_load_s: float, present_len: int = 0) -> LoadEstimate:
    """Weigh a prefix of 4,096 tokens in blocks of 64."""
    rates = Rates()
    rates.observe_prefill(512, 0, 512 * token_s)
    rates.observe_move(Tier.DISK, Direction.LOAD, BLOCK_BYTES, block_load_s)
    num_bytes = (4096 - present_len) // 64 * BLOCK_BYTES
    return weigh(
        rates, present_len=present_len, prefix_len=4096, num_bytes={Tier.DISK: num_bytes}, block_size=64
    )


def test_what_is_faster_is_done_and_both_where_both_take_long() -> None:
    loaded = estimate(token_s=0.004, block_load_s=0.002)
    assert loaded.expected_s == loaded.load_s == pytest.approx(64 * 0.002)
    assert loaded.compute_s == pytest.approx(4096 * 0.004)
    computed = estimate(token_s=0.00001, block_load_s=0.5)
    assert computed.expected_s == computed.compute_s
    both = estimate(token_s=0.001, block_load_s=0.064)
    assert both.expected_s == pytest.approx(both.load_s / 2)
    choices = [each.choice for each in (loaded, computed, both)]
    assert choices == [LoadChoice.LOAD, LoadChoice.COMPUTE, LoadChoice.BOTH]


def test_only_what_is_not_on_the_device_counts() -> None:
    chosen = estimate(token_s=0.001, block_load_s=0.064, present_len=2048)
    assert chosen.load_s == pytest.approx(32 * 0.064)
    assert chosen.compute_s == pytest.approx(2048 * 0.001)


def test_a_gain_that_nobody_would_notice_changes_nothing() -> None:
    assert estimate(token_s=0.000001, block_load_s=0.0015).choice is LoadChoice.LOAD
