"""A stored prompt is computed from its front and loaded from its tail, on a clock that a test moves."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from torch import Tensor

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.engine import Engine
from kvchat.engine.forward.runner import Runner
from kvchat.engine.memory.rates import Direction, Rates
from kvchat.engine.sequences.batch_plan import Batch
from kvchat.engine.startup.assembly import build_parts
from kvchat.engine.tiering.load_choice import meeting
from tests.engine.conftest import TinyModels
from tests.engine.stepped_reader import TimedReader
from tests.engine.tiny_models import answer, open_engine, reference, token_ids
from tests.hand_clock import HandClock

pytestmark = pytest.mark.cpu

BLOCK_SIZE, NUM_BLOCKS = 16, 40
TOLERANCE = 1.15


@dataclass
class TimedRunner:
    """Computes really, and takes `first_s + growth_s * number` of the simulated clock for each block."""

    inner: Runner
    clock: HandClock
    first_s: float
    growth_s: float
    last_begun_s: float = 0.0
    """When the step began that chose the first token: the prompt's prefix was there."""
    sizes: list[int] = field(default_factory=list)

    def run(self, batch: Batch) -> Tensor:
        self.last_begun_s = self.clock()
        self.sizes += [len(chunk.token_ids) for chunk in batch.chunks]
        for chunk in batch.chunks:
            positions = range(chunk.start, chunk.end)
            self.clock.now_s += sum(self.position_s(position) for position in positions)
        return self.inner.run(batch)

    def position_s(self, position: int) -> float:
        return (self.first_s + self.growth_s * (position // BLOCK_SIZE)) / BLOCK_SIZE


@dataclass
class Race:
    engine: Engine
    reader: TimedReader
    runner: TimedRunner
    clock: HandClock
    rates: Rates


@dataclass
class Track:
    """A conversation on disk, and engines that resume it on a simulated clock."""

    model_dir: Path
    cache_dir: Path
    text: list[int]
    engines: list[Engine]

    def start(self, *, first_s: float, growth_s: float, block_s: float, measured: bool = True) -> Race:
        """Open an engine that takes this long; `measured`: it knows already."""
        config = EngineConfig(
            device="cpu", block_size=BLOCK_SIZE, cache_dir=self.cache_dir, max_batch_tokens=8 * BLOCK_SIZE
        )
        parts = build_parts("tiny", self.model_dir, config)
        clock, rates = HandClock(), Rates()
        reader = TimedReader(parts.mover.fetch, clock=clock, block_s=block_s)
        runner = TimedRunner(parts.runner, clock, first_s, growth_s)
        engine = Engine(replace(parts, reader=reader, runner=runner, rates=rates), clock)  # type: ignore[arg-type]
        self.engines.append(engine)
        if measured:
            for number in range(0, NUM_BLOCKS, 4):
                seconds = sum(first_s + growth_s * block for block in range(number, number + 4))
                rates.observe_prefill(4 * BLOCK_SIZE, number * BLOCK_SIZE, seconds)
            block_bytes = sum(group.block_bytes(BLOCK_SIZE) for group in parts.manager.groups)
            rates.observe_move(Tier.DISK, Direction.LOAD, block_bytes, block_s)
        return Race(engine, reader, runner, clock, rates)


@pytest.fixture(scope="module")
def stored(tiny: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Track:
    model_dir = tiny("llama")
    cache_dir = tmp_path_factory.mktemp("stored")
    text = token_ids(NUM_BLOCKS * BLOCK_SIZE + 1)
    engine = open_engine(model_dir, cache_dir=cache_dir)
    answer(engine, text, 1)
    engine.close()
    return Track(model_dir, cache_dir, text, [])


@pytest.fixture
def track(stored: Track) -> Iterator[Track]:
    yield stored
    for engine in stored.engines:
        engine.check_integrity()
        engine.close()
        engine.check_integrity()
    stored.engines.clear()


def optimum_s(first_s: float, growth_s: float, block_s: float) -> float:
    def compute_s(num: int) -> float:
        return sum(first_s + growth_s * block for block in range(num))

    split = meeting(NUM_BLOCKS, compute_s, block_s)
    return max(compute_s(split), (NUM_BLOCKS - split) * block_s)


@pytest.mark.parametrize(
    ("first_s", "growth_s", "block_s"), [(0.8, 0.02, 3.0), (1.0, 0.0, 0.4), (0.5, 0.1, 1.0)]
)
def test_both_at_once_is_within_fifteen_hundredths_of_the_optimum(
    first_s: float, growth_s: float, block_s: float, track: Track
) -> None:
    race = track.start(first_s=first_s, growth_s=growth_s, block_s=block_s)
    result = answer(race.engine, track.text, 5)
    best_s = optimum_s(first_s, growth_s, block_s)
    assert race.runner.last_begun_s <= TOLERANCE * best_s
    assert race.runner.last_begun_s < 0.9 * NUM_BLOCKS * block_s
    num_loaded = race.reader.num_read
    assert 0 < num_loaded < NUM_BLOCKS
    assert result.loaded.disk == num_loaded * BLOCK_SIZE
    assert result.usage.computed_tokens == len(track.text) - result.loaded.disk
    assert result.token_ids == reference(track.model_dir).answer(track.text, 5)


def test_a_damaged_block_behind_the_meeting_is_computed_too(track: Track) -> None:
    race = track.start(first_s=1.0, growth_s=0.0, block_s=1.0)
    race.reader.fails_at = 7
    result = answer(race.engine, track.text, 5)
    assert result.usage.cached_tokens == result.loaded.total
    assert result.usage.computed_tokens > (NUM_BLOCKS // 2 - 7) * BLOCK_SIZE
    assert result.token_ids == reference(track.model_dir).answer(track.text, 5)
