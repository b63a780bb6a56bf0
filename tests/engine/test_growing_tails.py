"""What a growing answer brings to disk: each block once, and its tail as often as a kill would cost."""

from pathlib import Path

import pytest

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.engine import Engine
from kvchat.engine.startup.assembly import build_parts
from tests.engine.conftest import TinyModels
from tests.engine.tiny_models import submit, token_ids
from tests.hand_clock import HandClock

pytestmark = pytest.mark.cpu

PROMPT = token_ids(20)
BLOCK_SIZE = 16
STEP_S = 3.0


def engine_of(model_dir: Path, cache_dir: Path, token_s: float) -> tuple[Engine, HandClock]:
    """Return an engine that takes a token to compute in so many seconds, on a clock that a test moves."""
    config = EngineConfig(device="cpu", block_size=BLOCK_SIZE, cache_dir=cache_dir, speculate="off")
    parts, clock = build_parts("tiny", model_dir, config), HandClock()
    parts.rates.observe_prefill(100, 0, 100 * token_s)
    return Engine(parts, clock), clock


@pytest.mark.parametrize(("num_tokens", "token_s"), [(9, 0.001), (40, 0.001), (61, 0.001), (61, 0.3)])
def test_a_turn_writes_its_blocks_and_its_tail_once_however_long_it_takes(
    num_tokens: int, token_s: float, tiny: TinyModels, tmp_path: Path
) -> None:
    """Also where a tail takes almost as long to compute as a process takes to start again."""
    engine, clock = engine_of(tiny("llama"), tmp_path, token_s)
    submit(engine, PROMPT, num_tokens)
    while engine.has_work:
        engine.step()
        clock.now_s += STEP_S
    engine.drain_saves()
    num_stored = len(PROMPT) + num_tokens - 1  # the last token was never fed
    num_blocks = -(-num_stored // BLOCK_SIZE)
    (group,) = engine.snapshot().groups
    assert engine.snapshot().moved.to_disk == num_blocks * group.block_bytes
    engine.close()
