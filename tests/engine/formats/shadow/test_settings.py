"""Sizes of a shadow are those of the paper."""

import pytest

from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.shadow.settings import ShadowSettings
from tests.engine.formats.shadow.expected_bytes import expected_device_bytes

pytestmark = pytest.mark.pure

LLAMA = FullSpec(num_kv_heads=8, head_dim_k=128, head_dim_v=128, dtype="BF16")
USUAL = ShadowSettings()


def test_a_step_sees_what_it_chooses_the_outliers_and_the_local_chunks() -> None:
    assert USUAL.step_len == 2048 + 52 * 8
    assert USUAL.least_len == 432


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
