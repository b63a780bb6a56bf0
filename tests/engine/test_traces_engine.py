"""Warm is cold: whatever an engine has lived through, each answer is that of an engine without a past."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import TinyModels
from tests.engine.conversations import BEAMS, GREEDY, SEVERAL, Life, live

pytestmark = pytest.mark.cpu

SAMPLINGS = (GREEDY, GREEDY, GREEDY, SEVERAL, BEAMS)
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"sliding_window": 23},
    "gemma3": {
        "sliding_window": 37,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("seed", "num_actions"),
    [(5, 12), *(pytest.param(seed, 40, marks=pytest.mark.slow) for seed in range(100, 125))],
)
def test_after_any_life_each_answer_is_that_of_an_engine_without_a_past(
    kind: str, seed: int, num_actions: int, tiny: TinyModels, tmp_path: Path
) -> None:
    """Traps 11, 15, 16, 17 and 28 on a real model: questions, forks, cancelled answers,
    retries, pressure with and without host memory, and a restart from disk.
    """
    live(Life(tiny(kind, **KINDS[kind]), tmp_path, seed, *SAMPLINGS), num_actions)
