"""What gains nothing from a shadow is refused, with the numbers."""

import pytest

from kvchat.engine.formats.shadow.settings import LayerShape, ShadowSettings, check_gain
from kvchat.errors import UnsupportedModel, UsageError
from tests.engine.formats.shadow.expected_bytes import expected_device_bytes

pytestmark = pytest.mark.pure

LLAMA = LayerShape(num_kv_heads=8, head_dim=128, value_dim=128)
USUAL = ShadowSettings()
FORCED = ShadowSettings(is_forced=True)


def test_a_context_is_taken_from_four_times_what_a_step_sees() -> None:
    assert USUAL.step_len == 2048 + 52 * 8
    check_gain(USUAL, LLAMA, 9856)
    with pytest.raises(UsageError, match=r"9,855 tokens gain nothing from a shadow of 2,464: it takes 9,856"):
        check_gain(USUAL, LLAMA, 9855)
    check_gain(FORCED, LLAMA, 9855)


def test_a_context_that_cannot_be_divided_is_refused_even_if_forced() -> None:
    check_gain(FORCED, LLAMA, 432)
    with pytest.raises(UsageError, match=r"431 tokens are too few for a shadow.* take 432"):
        check_gain(FORCED, LLAMA, 431)


@pytest.mark.parametrize(("heads", "dim"), [(2, 64), (2, 128), (4, 64)])
def test_keys_too_narrow_to_gain_are_refused(heads: int, dim: int) -> None:
    shape = LayerShape(num_kv_heads=heads, head_dim=dim, value_dim=dim)
    with pytest.raises(UnsupportedModel, match=rf"{heads} x {dim} = {heads * dim} numbers.* more than 256"):
        check_gain(USUAL, shape, 100_000)
    check_gain(FORCED, shape, 100_000)
    assert USUAL.rank_for(heads * dim) < heads * dim


def test_the_usual_rank_is_that_of_the_paper_at_its_width_and_never_above_the_width() -> None:
    assert USUAL.rank_for(1024) == 160
    assert USUAL.rank_for(4096) == 160
    assert USUAL.rank_for(512) == 80
    assert ShadowSettings(rank=160).rank_for(128) == 128


@pytest.mark.parametrize(
    ("num_tokens", "budget", "published"),
    [(61_440, 1024, 6.02), (124_928, 2048, 6.11), (249_856, 4096, 6.14)],
)
def test_a_shadow_of_llama_3_is_as_small_as_published(num_tokens: int, budget: int, published: float) -> None:
    """By the formula, with 128 generated tokens; what is allocated is compared with it elsewhere."""
    settings = ShadowSettings(budget=budget, num_outliers=budget // 1024 * 24)
    num_bytes = expected_device_bytes(settings, LLAMA, num_tokens) + 128 * LLAMA.token_bytes
    ratio = num_tokens * LLAMA.token_bytes / num_bytes
    assert ratio == pytest.approx(published, rel=0.02)
    assert ratio >= 6
