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


# Bad numbers


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("score", [norm_scores, difference_scores])
def test_what_is_no_number_stays_in_sight(score: Any, value: float) -> None:
    """Otherwise an answer that has to end with an error would go on with nonsense."""
    keys = normal(H_KV, 20, D)
    keys[1, 7, 2] = value
    kept = select(score(keys), 4)
    assert 7 in kept[1].tolist()
    assert bool((kept[:, 1:] > kept[:, :-1]).all())


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
