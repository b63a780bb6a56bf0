"""What is kept of keys and values, against brute force and against attention's own weights."""

from dataclasses import replace
from math import sqrt
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import AttentionArgs
from kvchat.engine.kernels.paged_attention.reference import attend
from kvchat.engine.kernels.prune_kv.reference import (
    attention_weights,
    difference_scores,
    gather_kept,
    norm_scores,
    observed_scores,
    select,
    with_neighbours,
)

pytestmark = pytest.mark.cpu

H, H_KV, D, P = 4, 2, 16, 4
SCALED = AttentionArgs(spans=(), softmax_scale=D**-0.5)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Scores


def test_short_keys_are_wanted_most() -> None:
    keys = normal(H_KV, 50, D)
    for head in range(H_KV):
        lengths = [sqrt(sum(float(x) ** 2 for x in key)) for key in keys[head]]
        wanted = sorted(sorted(range(50), key=lambda token: lengths[token])[:10])
        assert select(norm_scores(keys), 10)[head].tolist() == wanted


def test_keys_that_are_like_no_others_are_wanted_most() -> None:
    keys = normal(H_KV, 50, D) + 2.0
    for head in range(H_KV):
        unit = [key / float(key.norm()) for key in keys[head].double()]
        mean = torch.stack(unit).mean(dim=0)
        similarity = [float(key @ mean / mean.norm()) for key in unit]
        wanted = sorted(sorted(range(50), key=lambda token: similarity[token])[:10])
        assert select(difference_scores(keys), 10)[head].tolist() == wanted


def test_weights_are_those_of_a_models_own_eager_attention() -> None:
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=H,
        num_key_value_heads=H_KV, vocab_size=100, initializer_range=0.3, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config).eval()
    seen: dict[str, Tensor] = {}

    def watch(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **rest: Any) -> Any:
        seen.update(query=query[0].transpose(0, 1), key=key[0])
        return transformers.models.llama.modeling_llama.eager_attention_forward(
            module, query, key, value, mask, **rest
        )

    transformers.AttentionInterface.register("watched", watch)
    ids = torch.randint(0, 100, (1, 30), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        wanted = model(ids, output_attentions=True).attentions[0][0, :, -6:]
        model.set_attn_implementation("watched")
        model(ids)
    found = attention_weights(seen["query"][-6:], seen["key"], SCALED)
    assert torch.allclose(found, wanted, atol=1e-6)


def test_a_token_that_the_last_queries_look_at_survives() -> None:
    query, keys = normal(6, H, D, seed=1), normal(H_KV, 100, D, seed=2)
    for head in range(H_KV):
        keys[head, 37] = query[:, 2 * head : 2 * head + 2].mean(dim=(0, 1)) * 12
    scores = observed_scores(attention_weights(query, keys, SCALED), H_KV, 0, 94)
    assert select(scores, 5).tolist() == [[35, 36, 37, 38, 39]] * H_KV
    blind = observed_scores(attention_weights(-query, keys, SCALED), H_KV, 0, 94)
    assert bool((blind[:, 37] < scores[:, 37] / 2).all())


def test_what_stands_beside_a_wanted_token_is_wanted_too() -> None:
    weights = torch.zeros(H, 3, 20)
    weights[:, :, 10] = 1.0
    scores = observed_scores(weights, H_KV, 0, 20)
    assert scores[0].nonzero()[:, 0].tolist() == [8, 9, 10, 11, 12]
    assert torch.allclose(scores.sum(dim=1), torch.ones(H_KV))


def test_the_borders_of_a_stretch_are_not_wanted_less() -> None:
    scores = observed_scores(torch.ones(H, 3, 20), H_KV, 4, 16)
    assert torch.equal(scores, torch.ones(H_KV, 12))


def test_the_heads_that_share_a_key_are_asked_together() -> None:
    weights = torch.zeros(H, 1, 20)
    weights[0, 0, 5], weights[1, 0, 15] = 0.6, 0.4
    scores = observed_scores(weights, H_KV, 0, 20)
    assert float(scores[0, 5]) == pytest.approx(0.6 / 2 / 5)
    assert float(scores[0, 15]) == pytest.approx(0.4 / 2 / 5)
    assert float(scores[1].abs().sum()) == 0


def test_what_stands_within_reach_of_a_wanted_token_is_wanted_as_much() -> None:
    scores = torch.zeros(H_KV, 40)
    scores[0, 20], scores[0, 30], scores[1, 0] = 1.0, 0.5, 2.0
    found = with_neighbours(scores, 6)
    assert (found[0] == 1.0).nonzero()[:, 0].tolist() == list(range(14, 27))
    assert (found[0] == 0.5).nonzero()[:, 0].tolist() == list(range(27, 37))
    assert (found[1] == 2.0).nonzero()[:, 0].tolist() == list(range(7))
    assert bool((found >= scores).all())


def test_a_number_behind_the_word_that_the_last_queries_look_at_survives_whole() -> None:
    """The question's queries look at the word alone; without reach the number's end is cut off."""
    query, keys = normal(6, H, D, seed=1), normal(H_KV, 200, D, seed=2)
    for head in range(H_KV):
        keys[head, 100] = query[:, 2 * head : 2 * head + 2].mean(dim=(0, 1)) * 12
    scores = observed_scores(attention_weights(query, keys, SCALED), H_KV, 0, 194)
    number = set(range(101, 107))
    for head in range(H_KV):
        assert number <= set(select(with_neighbours(scores, 6), 24)[head].tolist())
        assert not number <= set(select(scores, 24)[head].tolist())


def test_a_score_that_is_no_number_stays_one_within_reach() -> None:
    scores = torch.zeros(H_KV, 40)
    scores[0, 20] = float("nan")
    found = with_neighbours(scores, 3)
    assert not bool(found[0, 20].isfinite())
    assert 20 in select(found, 8)[0].tolist()
    assert bool(found[1].isfinite().all())


# Bad numbers


@pytest.mark.parametrize("score", [norm_scores, difference_scores])
def test_zero_vectors_have_finite_scores(score: Any) -> None:
    keys = normal(H_KV, 20, D)
    keys[:, 3:9] = 0
    assert bool(score(keys).isfinite().all())
    assert bool(score(torch.zeros(H_KV, 20, D)).isfinite().all())
    assert select(score(torch.zeros(H_KV, 20, D)), 3).tolist() == [[0, 1, 2]] * H_KV


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("score", [norm_scores, difference_scores])
def test_what_is_no_number_stays_in_sight(score: Any, value: float) -> None:
    """Otherwise an answer that has to end with an error would go on with nonsense."""
    keys = normal(H_KV, 20, D)
    keys[1, 7, 2] = value
    kept = select(score(keys), 4)
    assert 7 in kept[1].tolist()
    assert bool((kept[:, 1:] > kept[:, :-1]).all())


def test_huge_numbers_do_not_overflow() -> None:
    keys = (normal(H_KV, 20, D) * 1e4).half().clamp(-6e4, 6e4)
    assert bool(norm_scores(keys).isfinite().all())
    assert bool(difference_scores(keys).isfinite().all())


@pytest.mark.parametrize("count", [0, -1, 21])
def test_no_more_is_kept_than_there_is(count: int) -> None:
    with pytest.raises(ValueError, match="cannot be kept"):
        select(normal(H_KV, 20), count)


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="5 query heads cannot share 2"):
        attention_weights(normal(3, 5, D), normal(2, 10, D), SCALED)


def test_sinks_take_part_of_the_weight_and_softcaps_bound_the_scores() -> None:
    query, keys = normal(3, H, D), normal(H_KV, 10, D, seed=1) * 5
    plain = attention_weights(query, keys, SCALED)
    sinks = torch.tensor([0.0, 1.0, 2.0, 3.0])
    with_sinks = attention_weights(query, keys, replace(SCALED, sinks=sinks))
    assert torch.allclose(with_sinks / with_sinks.sum(dim=2, keepdim=True), plain, atol=1e-6)
    assert bool((with_sinks.sum(dim=2) < 1).all())
    last = attention_weights(query, keys, replace(SCALED, softcap=0.1))[:, -1]  # it sees all keys
    assert float((last.amax(dim=1) / last.amin(dim=1)).log().max()) <= 0.2 + 1e-5


# Moving


def test_of_equal_scores_the_earlier_are_kept() -> None:
    assert select(torch.zeros(H_KV, 20), 5).tolist() == [[0, 1, 2, 3, 4]] * H_KV


def test_each_head_keeps_its_own_tokens_in_their_order() -> None:
    pool = normal(12, H_KV, P, D)
    before = pool.clone()
    sources, targets = torch.tensor([7, 2, 9, 4]), torch.tensor([1, 11])
    kept = torch.stack([torch.tensor([0, 3, 4, 6, 9, 11, 14, 15]), torch.arange(8)])
    gather_kept(pool, sources, targets, kept)
    for head in range(H_KV):
        for place, token in enumerate(kept[head].tolist()):
            wanted = before[sources[token // P], head, token % P]
            assert torch.equal(pool[targets[place // P], head, place % P], wanted)
    others = [block for block in range(12) if block not in (1, 11)]
    assert torch.equal(pool[others], before[others])


def test_all_of_a_stretch_is_the_stretch_bit_by_bit() -> None:
    pool = normal(12, H_KV, P, D)
    sources, targets = torch.tensor([7, 2, 9]), torch.tensor([1, 11, 3])
    gather_kept(pool, sources, targets, select(norm_scores(normal(H_KV, 12, D)), 12))
    assert torch.equal(pool[targets], pool[sources])


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_attention_over_what_is_kept_is_dense_attention_with_a_mask(softcap: float | None) -> None:
    """Head by head, in the same numbers."""
    query, keys, values = normal(H, D), normal(H_KV, 40, D, seed=1), normal(H_KV, 40, D, seed=2)
    kept = select(difference_scores(keys), 12)
    args = AttentionArgs(spans=(), softmax_scale=D**-0.5, softcap=softcap)
    index = kept[:, :, None].expand(-1, -1, D)
    found = attend(
        query, keys.gather(1, index).transpose(0, 1), values.gather(1, index).transpose(0, 1), args
    )
    for head in range(H):
        own = head // (H // H_KV)
        scores = keys[own] @ query[head] * D**-0.5
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        hidden = torch.ones(40, dtype=torch.bool)
        hidden[kept[own]] = False
        wanted = scores.masked_fill(hidden, float("-inf")).softmax(dim=0) @ values[own]
        assert torch.allclose(found[head], wanted, atol=1e-6)
