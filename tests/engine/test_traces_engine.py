"""Warm is cold: whatever an engine has lived through, each answer is that of an engine without a past."""

from pathlib import Path
from typing import Any

import pytest

from kvchat.engine.api.events import FinishReason
from kvchat.engine.scheduling.scheduler import Drafter
from tests.engine.conftest import TinyModels
from tests.engine.conversations import BEAMS, GREEDY, SEVERAL, Asked, Life, cold

pytestmark = pytest.mark.cpu

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"sliding_window": 23},
    "gemma3": {
        "sliding_window": 37,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
}


def live(
    model_dir: Path, cache_dir: Path, seed: int, num_actions: int, drafter: Drafter | None = None
) -> None:
    life = Life(model_dir, cache_dir, seed, GREEDY, GREEDY, GREEDY, SEVERAL, BEAMS, drafter=drafter)
    life.run(num_actions)
    assert life.requests
    for number, asked in enumerate(life.requests):
        expect_cold(model_dir, asked, f"request {number} of seed {seed}")


def expect_cold(model_dir: Path, asked: Asked, name: str) -> None:
    result = asked.handle.result
    assert result is not None
    reasons = {sample.reason for sample in result.samples}
    assert reasons <= {FinishReason.LENGTH} | ({FinishReason.CANCELLED} if asked.may_be_cut else set())
    wanted = cold(model_dir, asked.prompt, asked.sampling).tokens
    if reasons == {FinishReason.LENGTH}:
        assert asked.tokens == wanted, name
    elif asked.sampling.beam_width is not None:
        return  # a search that is cut short tells its best beam so far, which another may overtake later
    for sample, tokens in asked.tokens.items():
        assert tokens == wanted[sample][: len(tokens)], name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [5])
def test_after_any_life_each_answer_is_that_of_an_engine_without_a_past(
    kind: str, seed: int, tiny: TinyModels, tmp_path: Path
) -> None:
    """Traps 11, 15, 16, 17 and 28 on a real model: questions, forks, cancelled answers,
    retries, pressure with and without host memory, and a restart from disk.
    """
    live(tiny(kind, **KINDS[kind]), tmp_path, seed, num_actions=12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(100, 125))
def test_after_many_lives_each_answer_is_that_of_an_engine_without_a_past(
    kind: str, seed: int, tiny: TinyModels, tmp_path: Path
) -> None:
    live(tiny(kind, **KINDS[kind]), tmp_path, seed, num_actions=40)
