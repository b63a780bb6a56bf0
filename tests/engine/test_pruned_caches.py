"""A long prompt is pruned once it has been read: what is computed then is attention over what was kept."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kvchat.engine.engine import Engine
from kvchat.errors import ConfigError
from tests.engine.conftest import OpenEngine, OpenRecorded, TinyModels
from tests.engine.namespaced import ask, name
from tests.engine.pruned import Pruned
from tests.engine.tiny_models import finish, reference, submit, token_ids

pytestmark = pytest.mark.cpu

BLOCK = 16
LAST = 32
"""Tokens of a prompt that stay in any case."""
FORMATS = ("knorm:48", "keydiff:48", "snapkv:48", "snapkv:48:pyramid")
"""Tokens of the exact blocks of a prompt of 203; its tail goes on with the answer, and is not exact then."""


def wanted_tokens(rule: str, keys: Tensor, weights: Tensor, stretch: range, at: int) -> Tensor:
    """Return brute-force scores [H_kv, n] of a stretch; weights [H, T, T]."""
    own = keys[:, stretch.start : stretch.stop].double()
    if rule == "knorm":
        return -own.norm(dim=2)
    if rule == "keydiff":
        unit = own / own.norm(dim=2, keepdim=True)
        return -torch.nn.functional.cosine_similarity(own, unit.mean(dim=1, keepdim=True), dim=2)
    seen = weights[:, at - LAST : at, stretch.start : stretch.stop].double().mean(dim=1)
    seen = seen.unflatten(0, (len(keys), -1)).mean(dim=1)
    around = [seen[:, max(0, token - 2) : token + 3].mean(dim=1) for token in range(len(stretch))]
    within = [around[max(0, token - 6) : token + 7] for token in range(len(stretch))]
    return torch.stack([torch.stack(near).amax(dim=0) for near in within], dim=1)


def dropped_tokens(scores: Tensor, stretch: range, num_kept: int) -> Tensor:
    order = scores.argsort(dim=1, descending=True, stable=True)
    return order[:, num_kept:] + stretch.start


def kept_of(cache_format: str, num_layers: int, num_blocks: int) -> list[int]:
    """Return the blocks that each layer keeps."""
    if not cache_format.endswith("pyramid"):
        return [3] * num_layers
    mean = 3 * BLOCK
    least, most = mean // 20, 2 * mean - mean // 20
    if most >= num_blocks * BLOCK:
        most, least = num_blocks * BLOCK, 2 * mean - num_blocks * BLOCK
    step = (most - least) // (num_layers - 1)
    return [max(1, -(-(most - layer * step) // BLOCK)) for layer in range(num_layers)]


@pytest.mark.parametrize(
    ("kind", "cache_format"), [*(("llama", text) for text in FORMATS), ("qwen3", "snapkv:48:pyramid")]
)
def test_a_pruned_answer_is_dense_attention_with_a_mask_for_each_head(
    kind: str, cache_format: str, tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    """Traps 20 and 32: original positions, a prompt that is computed exactly, and layers with a window of
    their own that keep it.
    """
    rule = cache_format.partition(":")[0]
    prompt = token_ids(203)
    stretch = range(BLOCK, (203 - LAST) // BLOCK * BLOCK)
    judge = Pruned(tiny(kind))
    full = [0, 1, 2, 3] if kind == "llama" else [1, 3]
    keys, weights = judge.exact(prompt)
    kept = dict(zip(full, kept_of(cache_format, len(full), len(stretch) // BLOCK), strict=True))
    dropped = [
        [
            (
                203,
                dropped_tokens(
                    wanted_tokens(rule, keys[layer], weights[layer], stretch, 203),
                    stretch,
                    kept[layer] * BLOCK,
                ),
            )
        ]
        if layer in full
        else []
        for layer in range(4)
    ]
    engine, recorder = open_recorded(tiny(kind), cache_format=cache_format)
    handle = submit(engine, prompt, 12)
    found = finish(engine, handle).token_ids
    engine.check_integrity()
    wanted = judge.logits(prompt + found, dropped)
    assert torch.allclose(recorder.row(handle.sequence, 202), wanted[202], atol=2e-4)
    for position in range(203, 213):
        row = recorder.row(handle.sequence, position)
        assert torch.allclose(row, wanted[position], atol=5e-4), position
        assert int(wanted[position].argmax()) == found[position - 202]
    exact = reference(tiny(kind)).logits(prompt + found)
    assert not torch.allclose(recorder.row(handle.sequence, 210), exact[210], atol=0.05)


Opened = Callable[..., Engine]


@pytest.fixture(
    params=[
        "snapkv:48:pyramid",
        pytest.param("keydiff:48", marks=pytest.mark.slow),
        pytest.param("knorm:48", marks=pytest.mark.slow),
        pytest.param("snapkv:48", marks=pytest.mark.slow),
    ]
)
def cache_format(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def opened(tiny: TinyModels, cache_format: str, open_engine: OpenEngine) -> Opened:
    return lambda **settings: open_engine(tiny("llama"), cache_format=cache_format, **settings)


# What is kept


@pytest.mark.parametrize("text", ["window:512", "keydiff:160", "snapkv:400:pyramid"])
def test_a_budget_that_keeps_all_is_bit_equal_to_the_exact_format(
    text: str, tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    prompt = token_ids(200)
    rows = []
    for cache_format in ("exact", text):
        engine, recorder = open_recorded(tiny("llama"), cache_format=cache_format)
        handle = submit(engine, prompt, 10)
        assert finish(engine, handle).token_ids == reference(tiny("llama")).answer(prompt, 10)
        rows.append([recorder.row(handle.sequence, position) for position in range(199, 208)])
    assert all(torch.equal(left, right) for left, right in zip(*rows, strict=True))


def test_a_prompt_of_16_bits_is_pruned_by_what_its_last_queries_look_at(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    """Whoever computes other prompts must leave these to the model, which tells of its queries."""
    engine = open_engine(tiny("llama"), dtype="bfloat16", cache_format="snapkv:48")
    result = ask(engine, token_ids(203), "", 16)
    assert len(result.token_ids) == 16


def test_what_is_pruned_is_let_go(opened: Opened, cache_format: str) -> None:
    engine = opened()
    handle = submit(engine, token_ids(603), 4)
    finish(engine, handle)
    num_layers = len(engine.snapshot().groups)
    used = sum(group.used_blocks for group in engine.snapshot().groups) / num_layers
    # The first block, what is kept, and the last ones: 32 tokens, up to a block more, and the answer.
    assert used <= 1 + (3.6 if cache_format.endswith("pyramid") else 3) + 4
    assert sum(group.cached_blocks for group in engine.snapshot().groups) >= 30


# Whose it is


def test_old_turns_are_not_pruned_again(opened: Opened) -> None:
    """A second question leaves what is left of the first text as it is, and a second text is pruned alone."""
    engine, prompt = opened(), token_ids(203)
    first = submit(engine, prompt, 8)
    text = [*prompt, *finish(engine, first).token_ids, *token_ids(24, seed=3)]

    def held() -> list[int]:
        return [group.used_blocks for group in engine.snapshot().groups]

    before = held()
    answer = finish(engine, submit(engine, text, 8, first.sequence))
    assert answer.usage.cached_tokens == 203 + 7
    assert [after - then for after, then in zip(held(), before, strict=True)] == [2] * len(before)
    longer = [*text, *answer.token_ids, *token_ids(300, seed=4)]
    last = finish(engine, submit(engine, longer, 8, first.sequence))
    engine.check_integrity()
    assert all(after - then <= 2 + 6 + 4 for after, then in zip(held(), before, strict=True))
    fresh = ask(opened(), longer, name("x", 203, len(text), len(longer)), 8)
    assert last.token_ids == fresh.token_ids


def test_another_question_about_the_same_text_is_pruned_anew(opened: Opened) -> None:
    """What is kept for one question is never found by another, though they share a block with it."""
    engine, text = opened(), token_ids(195)
    questions = [[*text, *token_ids(9, seed=seed)] for seed in (1, 2)]
    found = [ask(engine, one, name("a", len(one)), 12) for one in questions]
    assert found[1].usage.cached_tokens in (204 - LAST, 192)
    assert [one.token_ids for one in found] == [
        ask(opened(), one, name("x", len(one)), 12).token_ids for one in questions
    ]


# What is refused


def test_steps_that_are_too_short_to_look_are_refused(tiny: TinyModels, open_engine: OpenEngine) -> None:
    with pytest.raises(ConfigError, match="max_batch_tokens must be at least that, not 31"):
        open_engine(tiny("llama"), cache_format="snapkv:48", max_batch_tokens=31)
    open_engine(tiny("llama"), cache_format="knorm:48", max_batch_tokens=31).close()
