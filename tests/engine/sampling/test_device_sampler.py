"""Tokens drawn for all rows at once come from the very distributions that single rows ask for."""

from itertools import product

import pytest
import torch

from kvchat.engine.api.ids import RequestId
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.sampling.sampler import Sampler, SamplingRow, choices, distribution, draw

pytestmark = pytest.mark.cpu

NUM_DRAWS = 1000
SETTINGS = [
    SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature, top_k, top_p, min_p in product((0.5, 1.0), (None, 3, 100), (1.0, 0.7, 1e-9), (0.0, 0.3))
]


@pytest.mark.parametrize("params", SETTINGS, ids=range(len(SETTINGS)))
def test_evenly_spread_numbers_give_each_token_its_share(params: SamplingParams) -> None:
    logits = 2 * torch.randn(12, generator=torch.Generator().manual_seed(0))
    numbers = [(number + 0.5) / NUM_DRAWS for number in range(NUM_DRAWS)]
    tokens = draw(logits.expand(NUM_DRAWS, -1), [params] * NUM_DRAWS, numbers)
    shares = torch.bincount(tokens, minlength=12) / NUM_DRAWS
    wanted = distribution(logits, params)
    assert torch.allclose(shares, wanted, atol=1.5 / NUM_DRAWS)
    assert not shares[wanted == 0].any()


def test_a_row_draws_what_it_draws_alone() -> None:
    logits = torch.randn(len(SETTINGS) + 1, 50, generator=torch.Generator().manual_seed(1))
    params = [*SETTINGS, SamplingParams(temperature=0.0)]
    numbers = torch.rand(len(params), generator=torch.Generator().manual_seed(2)).tolist()
    together = draw(logits, params, numbers)
    for number, token in enumerate(together):
        assert draw(logits[number][None], [params[number]], [numbers[number]]) == token
    assert together[-1] == logits[-1].argmax()


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_the_ends_of_the_range_draw_tokens_that_have_a_share(number: float) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -200.0, -torch.inf]])
    assert int(draw(logits, [SamplingParams(temperature=1.0)], [number])) in (1, 2)


def test_a_seed_gives_the_same_text_in_company_and_rows_that_are_no_numbers_give_none() -> None:
    logits = torch.randn(20, 30, generator=torch.Generator().manual_seed(3))
    mine, other = SamplingParams(temperature=1.0, seed=7), SamplingParams(temperature=0.8, top_k=5)
    alone, crowded = Sampler(0), Sampler(1)
    for line in logits:
        (wanted,) = choices(alone.begin(line[None], [SamplingRow(RequestId(1), mine, (0,))]))
        rows = [
            SamplingRow(RequestId(2), other, (0,)),
            SamplingRow(RequestId(1), mine, (0,)),
            SamplingRow(RequestId(3), mine, (0,)),
        ]
        found = choices(crowded.begin(torch.stack([-line, line, line * torch.nan]), rows))
        assert found[1] == wanted
        assert found[2] == [None]
