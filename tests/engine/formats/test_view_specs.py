"""Budgets that shrink from layer to layer."""

from itertools import pairwise

import pytest

from kvchat.engine.formats.pruned.spec import pyramid_budgets

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("capacity", "num_tokens", "first", "last"),
    [(2048, 32768, 3978, 103), (128, 8000, 234, 17), (2048, 3000, 2992, 1101)],
)
def test_published_settings_give_the_published_budgets(
    capacity: int, num_tokens: int, first: int, last: int
) -> None:
    """Both are of 32 layers and leave out a window of 8 tokens that each keeps."""
    budgets = pyramid_budgets(mean=capacity - 8, most=num_tokens - 8, num_layers=32)
    assert (budgets[0], budgets[-1]) == (first, last)
    assert len({left - right for left, right in pairwise(budgets)}) == 1


def test_the_mean_is_about_what_was_asked_for() -> None:
    budgets = pyramid_budgets(mean=2040, most=32760, num_layers=32)
    assert sum(budgets) / 32 + 8 == 2048.5


@pytest.mark.parametrize("num_layers", [1, 2, 3, 7, 80])
def test_no_layer_keeps_none_or_more_than_there_is(num_layers: int) -> None:
    for mean in (1, 19, 20, 64, 1000):
        for most in (mean + 1, 2 * mean, 100 * mean):
            budgets = pyramid_budgets(mean=mean, most=max(most, mean + 1), num_layers=num_layers)
            assert len(budgets) == num_layers
            assert all(0 <= budget <= most for budget in budgets)
            assert list(budgets) == sorted(budgets, reverse=True)
