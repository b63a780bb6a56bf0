"""What queries see is read off a mask, whatever made it; anything that is no window and no chunk is named."""

import pytest
import torch
from torch import Tensor

from kvchat.engine.models.probing.attention_probe import VisibleRange, reach_of

pytestmark = pytest.mark.cpu

START = 50


def mask_of(rule: Tensor) -> Tensor:
    """Return a boolean rule [T, S] as transformers' additive mask [1, 1, T, S]."""
    low = torch.finfo(torch.float32).min
    return torch.where(rule, 0.0, low)[None, None]


def positions(num_queries: int = 2) -> tuple[Tensor, Tensor]:
    queries = torch.arange(START, START + num_queries)[:, None]
    return queries, torch.arange(START + num_queries)[None]


def test_everything_before_is_full() -> None:
    queries, keys = positions()
    assert reach_of(mask_of(keys <= queries), START, 16) == VisibleRange()
    assert reach_of((keys <= queries)[None, None], START, None) == VisibleRange()


@pytest.mark.parametrize("window", [1, 7, 50])
def test_a_window_is_its_length(window: int) -> None:
    queries, keys = positions()
    assert reach_of(mask_of((keys <= queries) & (keys > queries - window)), START, 16) == VisibleRange(
        window=window
    )


@pytest.mark.parametrize("chunk", [16, 17, 25, 51])
def test_chunks_are_told_from_windows_also_across_their_edge(chunk: int) -> None:
    """With 17 and 51, a chunk begins at the second query."""
    queries, keys = positions()
    seen = (keys <= queries) & (keys // chunk == queries // chunk)
    found = reach_of(mask_of(seen), START, chunk)
    assert found == VisibleRange(chunk=chunk)


def test_what_is_neither_is_a_problem() -> None:
    queries, keys = positions()
    causal = keys <= queries
    assert _problem(mask_of(keys >= 0)) is not None
    assert _problem(mask_of(causal & (keys % 2 == queries % 2))) is not None
    assert _problem(mask_of(causal & (keys >= 13))) is not None
    assert _problem(mask_of(causal)[..., 2:]) is not None


def test_a_bias_or_a_mask_for_each_head_is_a_problem() -> None:
    queries, keys = positions()
    mask = mask_of(keys <= queries)
    assert _problem(mask - 0.5 * (queries - keys).clamp_min(0)) == "adds a bias to its scores"
    narrow = mask_of((keys <= queries) & (keys > queries - 9))
    assert _problem(torch.cat([mask, narrow], dim=1)) == "masks each head in its own way"


def _problem(mask: Tensor) -> str | None:
    return reach_of(mask, START, 16).problem
