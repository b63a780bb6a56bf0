"""The first choice of an engine between loading and computing rests on what the ones before it measured."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.events import LoadChoice, LoadEstimate, LoadPlanned
from kvchat.engine.engine import Engine
from kvchat.engine.memory.rates import Rates
from kvchat.engine.startup.assembly import build_parts
from tests.engine.conftest import TinyModels
from tests.engine.stepped_reader import Clock, TimedReader
from tests.engine.test_meeting import TimedRunner
from tests.engine.test_update_weights import other_of
from tests.engine.tiny_models import answer, submit, token_ids
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]
BLOCK_SIZE, NUM_BLOCKS = 16, 40
TEXT = token_ids(NUM_BLOCKS * BLOCK_SIZE + 1)


class Medium:
    """Engines, one after another in one directory, on a simulated clock."""

    def __init__(self, model_dir: Path, cache_dir: Path) -> None:
        self.model_dir = model_dir
        self.config = EngineConfig(
            device="cpu", block_size=BLOCK_SIZE, cache_dir=cache_dir, max_batch_tokens=8 * BLOCK_SIZE
        )

    def start(self, *, compute_s: float, load_s: float) -> Engine:
        """Open an engine that computes and loads a block in so many seconds, and was told neither."""
        parts, clock = build_parts("tiny", self.model_dir, self.config), Clock()
        reader = TimedReader(parts.mover.fetch, clock=clock, block_s=load_s)
        runner = TimedRunner(parts.runner, clock, compute_s, 0.0)
        return Engine(replace(parts, reader=reader, runner=runner), clock)  # type: ignore[arg-type]


def first_estimate(engine: Engine) -> LoadEstimate:
    """Ask for the text's next token, and return what was told before anything was measured."""
    submit(engine, TEXT, 1)
    (planned,) = [event for event in engine.step() if isinstance(event, LoadPlanned)]
    return planned.estimate


def test_a_fast_processor_beside_a_slow_disk_does_not_wait_for_it_a_second_time(
    tiny: TinyModels, tmp_path: Path
) -> None:
    """By the constants alone loading was chosen in every process anew, and no prefill was ever measured."""
    medium = Medium(tiny("llama"), tmp_path)
    engine = medium.start(compute_s=0.01, load_s=10.0)
    answer(engine, TEXT, 1)
    engine.close()
    engine = medium.start(compute_s=0.01, load_s=10.0)
    assert first_estimate(engine).choice is LoadChoice.LOAD  # that the disk is slow is not known yet
    while engine.has_work:
        engine.step()
    engine.close()
    engine = medium.start(compute_s=0.01, load_s=10.0)
    estimate = first_estimate(engine)
    assert estimate.choice is LoadChoice.COMPUTE
    assert estimate.compute_s == pytest.approx(NUM_BLOCKS * 0.01, rel=0.01)
    assert estimate.load_s == pytest.approx(NUM_BLOCKS * 10.0, rel=0.01)
    engine.close()


def test_another_model_computes_at_no_speed_that_was_measured_with_this_one(
    tiny: TinyModels, tmp_path: Path
) -> None:
    """Other weights of the same model take as long, and are found to where an engine has changed to them."""
    model_dir, cache_dir = tiny("llama"), tmp_path / "cache"
    others = (other_of(model_dir, tmp_path / "other"), tiny("qwen3"))
    engine = Medium(model_dir, cache_dir).start(compute_s=1.0, load_s=10.0)
    answer(engine, TEXT, 1)
    engine.update_weights(others[0])
    engine.close()
    for other in others:
        parts = build_parts("tiny", other, Medium(other, cache_dir).config)
        expected = 64 / BLOCK_SIZE if other is others[0] else Rates().seconds_to_compute(64)
        assert parts.rates.seconds_to_compute(64) == pytest.approx(expected)
        Engine(parts).close()


ASK = """
import json, sys
from pathlib import Path
from kvchat.engine import Engine, EngineConfig, Request, SamplingParams
from kvchat.engine.api.events import LoadPlanned

model_dir, cache_dir, text = json.load(sys.stdin)
engine = Engine.load(model_dir, EngineConfig(device="cpu", block_size=16, cache_dir=Path(cache_dir)))
engine.submit(Request(token_ids=tuple(text), sampling=SamplingParams(max_tokens=1)))
events = [event for _ in range(100) for event in engine.step()]
engine.close()
print(json.dumps([event.estimate.compute_s for event in events if isinstance(event, LoadPlanned)]))
"""


def ask(model_dir: Path, cache_dir: Path) -> list[float]:
    """Ask in a process of its own; return how long it says that computing would take."""
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps([str(model_dir), str(cache_dir), TEXT]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
        check=True,
    )
    told: list[float] = json.loads(done.stdout)
    return told
