"""Each request draws from its own generator, from the distribution it asked for."""

from math import inf, log, nan

import pytest
import torch
from torch import Tensor

from kvchat.engine.api.ids import RequestId
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.sampling.sampler import SampledToken, Sampler, SamplingRow, distribution
from kvchat.errors import InvalidRequest

pytestmark = pytest.mark.cpu

PROBABILITIES = (0.4, 0.3, 0.2, 0.1)
LOGITS = torch.tensor([log(p) for p in PROBABILITIES])


def row(params: SamplingParams, number: int = 1, draft: tuple[int, ...] = ()) -> SamplingRow:
    return SamplingRow(RequestId(number), params, (0,), draft)


def sample(sampler: Sampler, logits: Tensor, rows: list[SamplingRow]) -> list[SampledToken | None]:
    """Return the next token of each sequence; none has a draft."""
    return [choice for (choice,) in sampler.sample(logits, rows)]


def draw(sampler: Sampler, logits: Tensor, params: SamplingParams, num_tokens: int) -> list[int]:
    """Return the tokens that one request draws from the same logits again and again."""
    tokens = []
    for _ in range(num_tokens):
        (choice,) = sample(sampler, logits[None], [row(params)])
        assert choice is not None
        tokens.append(choice.token_id)
    return tokens


def kept(**settings: float | int) -> set[int]:
    """Return the tokens that a distribution leaves possible."""
    probabilities = distribution(LOGITS, SamplingParams(temperature=1.0, **settings))  # type: ignore[arg-type]
    assert probabilities.sum() == pytest.approx(1.0)
    return set(probabilities.nonzero().flatten().tolist())


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 0.999}])
def test_a_set_of_one_token_is_greedy_at_any_temperature(settings: dict[str, float]) -> None:
    logits = torch.randn(50, 100, generator=torch.Generator().manual_seed(0))
    params = SamplingParams(temperature=5.0, seed=3, **settings)  # type: ignore[arg-type]
    sampler = Sampler(0)
    for line in logits:
        assert draw(sampler, line, params, 1) == [int(line.argmax())]


def test_top_k_top_p_and_min_p_keep_the_most_probable_tokens() -> None:
    assert kept(top_k=2) == {0, 1}
    assert kept(top_k=99) == {0, 1, 2, 3}
    assert kept(top_p=0.39) == {0}
    assert kept(top_p=0.41) == {0, 1}
    assert kept(top_p=0.69) == {0, 1}
    assert kept(top_p=1.0) == {0, 1, 2, 3}
    assert kept(min_p=0.3) == {0, 1, 2}
    assert kept(top_k=3, top_p=0.65) == {0, 1}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_their_probability_says(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=7)
    tokens = draw(Sampler(0), LOGITS, params, 4000)
    weights = [p ** (1 / temperature) for p in PROBABILITIES]
    for token, weight in enumerate(weights):
        assert tokens.count(token) / 4000 == pytest.approx(weight / sum(weights), abs=0.03)


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-12, 1e30])
def test_extreme_temperatures_still_choose_a_token(temperature: float) -> None:
    logits = torch.tensor([-60.0, 90.0, 89.0])
    (token,) = draw(Sampler(0), logits, SamplingParams(temperature=temperature, seed=0), 1)
    assert token in range(3)
    assert temperature > 1 or token == 1


def test_a_seed_gives_the_same_text_whatever_else_is_in_the_batch() -> None:
    logits = torch.randn(30, 50, generator=torch.Generator().manual_seed(0))
    params, other = SamplingParams(temperature=1.0, seed=11), SamplingParams(temperature=0.7)
    alone = [draw_one(Sampler(seed=0), logits, [row(params)])]
    crowded = Sampler(seed=99)
    texts = []
    for step in range(30):
        lines = logits[[step, 29 - step, step]]
        choices = sample(crowded, lines, [row(other, 5), row(other, 6), row(params, 7)])
        assert choices[2] is not None
        texts.append(choices[2].token_id)
    assert alone == [texts]
    assert draw_one(Sampler(0), logits, [row(SamplingParams(temperature=1.0, seed=12))]) != texts


def draw_one(sampler: Sampler, logits: Tensor, rows: list[SamplingRow]) -> list[int]:
    choices = [sample(sampler, line[None], rows)[0] for line in logits]
    return [choice.token_id for choice in choices if choice is not None]


def test_requests_without_a_seed_follow_from_the_engines_seed() -> None:
    params = SamplingParams(temperature=1.0)
    logits = torch.zeros(200)
    first, again, other = (draw(Sampler(seed), logits, params, 20) for seed in (4, 4, 5))
    assert first == again != other


def test_a_finished_requests_generator_is_forgotten() -> None:
    sampler, params = Sampler(0), SamplingParams(temperature=1.0, seed=1)
    logits = torch.zeros(200)
    first = draw(sampler, logits, params, 10)
    sampler.forget(RequestId(1))
    assert draw(sampler, logits, params, 10) == first
    sampler.forget(RequestId(42))


@pytest.mark.parametrize("poison", [nan, inf, -inf])
def test_a_row_without_usable_numbers_has_no_token_and_its_neighbours_have_theirs(poison: float) -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    if poison == -inf:
        logits[1] = poison
    else:
        logits[1, 4] = poison
    for params in (SamplingParams(), SamplingParams(temperature=1.0)):
        choices = sample(Sampler(0), logits, [row(params, number) for number in range(3)])
        assert choices[1] is None
        assert choices[0] is not None
        assert choices[2] is not None


def test_tokens_that_are_ruled_out_by_the_model_are_never_drawn() -> None:
    logits = LOGITS.clone()
    logits[0] = -inf
    assert 0 not in draw(Sampler(0), logits, SamplingParams(temperature=3.0, seed=0), 200)


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_every_seed_that_is_taken_can_be_used(seed: int) -> None:
    assert draw(Sampler(0), LOGITS, SamplingParams(temperature=1.0, seed=seed), 1)[0] in range(4)


@pytest.mark.parametrize("seed", [-1, 2**63, 2**70])
def test_a_seed_that_no_generator_takes_is_refused_at_once(seed: int) -> None:
    """One request's bad number must not stop the engine for all."""
    with pytest.raises(InvalidRequest, match="seed"):
        SamplingParams(temperature=1.0, seed=seed)


# Drafts


def test_a_draft_is_followed_up_to_the_first_token_that_is_not_chosen() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    right = logits.argmax(dim=1).tolist()
    for num_right in range(5):
        draft = (*right[:num_right], (right[num_right] + 1) % 50, *right[num_right + 1 : 4])[:5]
        (chosen,) = Sampler(0).sample(logits[: 1 + len(draft)], [row(SamplingParams(), draft=draft)])
        assert [choice.token_id for choice in chosen if choice] == right[: num_right + 1]
    (chosen,) = Sampler(0).sample(logits, [row(SamplingParams(), draft=tuple(right[:5]))])
    assert [choice.token_id for choice in chosen if choice] == right


def test_drafted_tokens_are_drawn_as_they_are_one_by_one_whatever_is_beside_them() -> None:
    """The generator and the penalty of a sequence go on exactly as far as its tokens do."""
    params = SamplingParams(temperature=1.0, seed=5, repetition_penalty=1.4)
    logits = torch.randn(40, 8, generator=torch.Generator().manual_seed(2))
    wanted = draw_one(Sampler(0), logits, [row(params)])
    sampler, tokens = Sampler(0), list[int]()
    while len(tokens) < 36:
        start = len(tokens)
        draft = (*wanted[start : start + 2], 7 - wanted[start + 2])
        rows = [row(SamplingParams(), 2), row(params, draft=draft)]
        beside, chosen = sampler.sample(torch.cat([logits[:1], logits[start : start + 4]]), rows)
        assert len(beside) == 1
        tokens += [choice.token_id for choice in chosen if choice]
    assert tokens == wanted[: len(tokens)]


def test_a_row_that_is_not_a_number_ends_a_draft() -> None:
    logits = torch.randn(4, 20, generator=torch.Generator().manual_seed(0))
    right = tuple(logits.argmax(dim=1).tolist())
    logits[2] = nan
    (chosen,) = Sampler(0).sample(logits, [row(SamplingParams(), draft=right[:3])])
    assert [choice and choice.token_id for choice in chosen] == [*right[:2], None]
