"""Stored blocks come to the device beside everybody else's answers, and no answer changes."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import copytree
from threading import Event as Flag
from typing import Any

import pytest

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.events import Loaded, LoadPlanned, TokenEmitted
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_operations import Fetch
from kvchat.engine.engine import Engine
from kvchat.engine.memory.reader import Reader
from kvchat.engine.results import Handle
from kvchat.engine.startup.assembly import build_parts
from kvchat.engine.startup.parts import EngineParts
from tests.engine.conftest import TinyModels
from tests.engine.stepped_reader import SteppedReader
from tests.engine.tiny_models import (
    answer,
    finish,
    make_computing_slow,
    open_engine,
    reference,
    submit,
    token_ids,
)
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.cpu

BLOCK_SIZE = 16


class Gate:
    """A medium that gives no block before it is opened: stands before the real directory."""

    def __init__(self, fetch: Callable[[Fetch], bool]) -> None:
        self._fetch = fetch
        self._opened = Flag()
        self.is_waited_at = Flag()
        self.num_fetched = 0

    def __call__(self, move: Fetch) -> bool:
        self.is_waited_at.set()
        self._opened.wait()
        self.num_fetched += 1
        return self._fetch(move)

    def open(self) -> None:
        self._opened.set()


class Stage:
    """A cache directory in which a conversation has been saved, and the engines on it."""

    def __init__(self, model_dir: Path, cache_dir: Path, text: list[int]) -> None:
        self.model_dir, self.cache_dir = model_dir, cache_dir
        self.text = text or self.say(token_ids(150))
        self.opened: list[Engine] = []

    def say(self, prompt: list[int], num_tokens: int = 6) -> list[int]:
        """Answer in an engine of its own and close it; return the whole text."""
        engine = open_engine(self.model_dir, cache_dir=self.cache_dir)
        text = prompt + answer(engine, prompt, num_tokens).token_ids
        engine.close()
        return text

    def gated(self) -> tuple[Engine, Gate]:
        parts = self._parts()
        make_computing_slow(parts.rates)
        gate = Gate(parts.mover.fetch)
        return self._open(replace(parts, reader=Reader(gate, max_bytes=2**30))), gate

    def stepped(self, **settings: Any) -> tuple[Engine, SteppedReader]:
        """Return an engine for which one block lands per step."""
        parts = self._parts(**settings)
        reader = SteppedReader(parts.mover.fetch)
        return self._open(replace(parts, reader=reader)), reader

    def right(self, prompt: list[int], num_tokens: int) -> list[int]:
        return reference(self.model_dir).answer(prompt, num_tokens)

    def _parts(self, **settings: Any) -> EngineParts:
        settings = {"device": "cpu", "block_size": BLOCK_SIZE, "cache_dir": self.cache_dir} | settings
        return build_parts("tiny", self.model_dir, EngineConfig(**settings))

    def _open(self, parts: EngineParts) -> Engine:
        self.opened.append(Engine(parts))
        return self.opened[-1]


@pytest.fixture(scope="module")
def saved(tiny: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Stage]:
    """Return a function (kind of model) -> stage to copy; each is made once."""
    return cache(lambda kind: Stage(tiny(kind), tmp_path_factory.mktemp(kind), []))


@pytest.fixture
def stage(saved: Callable[[str], Stage], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    first = saved(getattr(request, "param", "qwen3"))
    stage = Stage(first.model_dir, copytree(first.cache_dir, tmp_path / "cache"), first.text)
    yield stage
    for engine in stage.opened:
        engine.check_integrity()
        engine.close()
        engine.check_integrity()


def request(prompt: list[int], num_tokens: int, priority: int) -> Request:
    sampling = SamplingParams(max_tokens=num_tokens)
    return Request(token_ids=tuple(prompt), sampling=sampling, priority=priority)


def load_all(engine: Engine) -> None:
    while engine.is_loading:
        engine.tick()
        engine.check_integrity()


def num_tokens(engine: Engine, handle: Handle, num_steps: int) -> int:
    """Step and count the tokens that a request gets."""
    found = 0
    for _ in range(num_steps):
        for event in engine.step():
            found += isinstance(event, TokenEmitted) and event.request_id == handle.request_id
    return found


@pytest.mark.parametrize("stage", ["llama", "qwen3"], indirect=True)
def test_an_answer_goes_on_in_every_step_while_another_session_is_loaded(stage: Stage) -> None:
    text = stage.text
    engine, gate = stage.gated()
    decoding = submit(engine, token_ids(20, seed=1), 50)
    engine.step()
    resumed = submit(engine, text + token_ids(9, seed=2), 12)
    assert num_tokens(engine, decoding, 40) == 40
    assert gate.is_waited_at.wait(PATIENCE_S)
    assert gate.num_fetched == 0
    engine.check_integrity()
    gate.open()
    result = finish(engine, resumed)
    assert result.loaded == Loaded(disk=len(text) - 1)
    assert result.token_ids == stage.right(text + token_ids(9, seed=2), 12)
    rest = finish(engine, decoding)
    assert rest.token_ids == stage.right(token_ids(20, seed=1), 50)


@pytest.mark.parametrize("num_landed", [0, 1, 4, 9])
def test_a_request_that_is_cancelled_while_it_loads_leaks_nothing(num_landed: int, stage: Stage) -> None:
    """Traps 7 and 12: blocks stay held until the reader lets go of them, and are free or cached then."""
    text = stage.text
    engine, reader = stage.stepped()
    handle = submit(engine, text + token_ids(3), 5)
    for _ in range(num_landed + 1):
        engine.step()
        engine.check_integrity()
    handle.cancel()
    engine.step()
    engine.check_integrity()
    engine.release(handle.sequence)
    load_all(engine)
    usage = engine.snapshot().tier(Tier.DEVICE)
    assert usage.used_bytes == 0
    assert reader.num_read <= 2 * num_landed + 3
    prompt = text + token_ids(3)
    assert answer(engine, prompt, 5).token_ids == stage.right(prompt, 5)


def test_two_requests_for_the_same_blocks_read_them_once(stage: Stage) -> None:
    text = stage.text
    engine, reader = stage.stepped()
    prompts = [text + token_ids(5, seed=seed) for seed in (3, 4)]
    handles = [submit(engine, prompt, 8) for prompt in prompts]
    results = [finish(engine, handle) for handle in handles]
    assert reader.num_read == len(text) // BLOCK_SIZE + 1
    assert results[0].loaded == Loaded(disk=len(text) - 1)
    assert results[1].loaded == Loaded(device=results[1].usage.cached_tokens)
    assert results[1].usage.cached_tokens >= len(text) - 1
    for prompt, result in zip(prompts, results, strict=True):
        assert result.token_ids == stage.right(prompt, 8)


def test_nobody_waits_for_less_important_ones_to_use_what_has_arrived(stage: Stage) -> None:
    text = stage.say(token_ids(64, seed=5), num_tokens=2)
    engine, _ = stage.stepped(device_bytes=18 * 16384)
    assert engine.snapshot().groups[0].total_blocks == 18
    at_work = engine.submit(request(token_ids(100, seed=1), 60, priority=3))
    engine.step()
    # Too long to be admitted beside the one at work, so it keeps what it has loaded and waits.
    patient = engine.submit(request(text + token_ids(120, seed=2), 4, priority=5))
    engine.step()
    urgent = engine.submit(request([*text, 7], 4, priority=0))
    assert finish(engine, urgent).loaded == Loaded(disk=len(text) - 1), "it is the first to use them"
    assert at_work.result is None
    assert patient.result is None
    finish(engine, at_work)
    assert finish(engine, patient).loaded.disk == 0


def test_the_estimate_is_told_before_the_wait(stage: Stage) -> None:
    text = stage.text
    engine, _ = stage.stepped()
    handle = submit(engine, text + token_ids(3), 5)
    (planned,) = [event for event in engine.step() if isinstance(event, LoadPlanned)]
    assert planned.request_id == handle.request_id
    assert 0 < planned.estimate.load_s <= planned.estimate.expected_s
    finish(engine, handle)


def test_a_path_that_was_promoted_is_on_the_device_when_its_request_comes(stage: Stage) -> None:
    text = stage.text
    engine, reader = stage.stepped()
    engine.prefetch(text)
    load_all(engine)
    num_read = reader.num_read
    usage = engine.snapshot().tier(Tier.DEVICE)
    assert usage.used_bytes == 0
    assert usage.cached_bytes > 0
    prompt = text + token_ids(4, seed=5)
    result = answer(engine, prompt, 8)
    assert reader.num_read == num_read
    assert result.loaded == Loaded(disk=len(text) - 1), "brought for this session, and counted once"
    assert result.token_ids == stage.right(prompt, 8)
    again = answer(engine, text + token_ids(4, seed=6), 8)
    assert again.loaded == Loaded(device=len(text))


@pytest.mark.parametrize("num_promoted", [1, 7])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_request_brings_what_the_promotion_of_its_path_has_not_and_both_count_together(
    num_promoted: int, goes_on: bool, stage: Stage
) -> None:
    text = stage.text
    engine, reader = stage.stepped()
    engine.prefetch(text)
    while reader.num_read < num_promoted:
        engine.tick()
    if not goes_on:
        engine.prefetch(())
        load_all(engine)
    prompt = text + token_ids(4, seed=5)
    result = answer(engine, prompt, 8)
    assert reader.num_read == len(text) // BLOCK_SIZE + 1
    assert result.loaded == Loaded(disk=len(text) - 1)
    assert result.token_ids == stage.right(prompt, 8)
    assert not engine.is_loading


def test_a_promotion_ends_when_the_wish_changes_and_what_has_arrived_stays(stage: Stage) -> None:
    first, second = (stage.say(token_ids(150, seed=seed)) for seed in (6, 7))
    engine, reader = stage.stepped()
    engine.prefetch(first)
    for _ in range(3):
        engine.tick()
    engine.prefetch(second)
    load_all(engine)
    assert reader.num_read < 2 * (len(first) // BLOCK_SIZE)
    num_read = reader.num_read
    assert answer(engine, second, 4).loaded.disk == len(second) - 1
    assert reader.num_read == num_read
    engine.prefetch(first)
    engine.prefetch(())
    assert not engine.is_loading or reader.jobs


@pytest.mark.parametrize("stage", ["llama"], indirect=True)
def test_a_promotion_takes_no_room_from_the_session_on_screen(stage: Stage) -> None:
    shown, other = (stage.say(token_ids(100, seed=seed)) for seed in (8, 9))
    engine, reader = stage.stepped(device_bytes=160 * 4 * 2 * 2 * 16 * 4)
    for path, beside in ((shown, ()), (other, shown), (other, shown)):
        engine.prefetch(path, beside)
        load_all(engine)
    assert engine.snapshot().tier(Tier.DEVICE).num_blocks == 10
    num_read = reader.num_read
    assert answer(engine, shown, 2).loaded.disk == len(shown) - 1
    assert reader.num_read == num_read


@pytest.mark.parametrize(("stage", "seed"), [("llama", 0), ("qwen3", 1)], indirect=["stage"])
def test_many_sessions_that_come_and_go_in_a_small_pool_are_answered_as_by_an_engine_that_never_closed(
    seed: int, stage: Stage
) -> None:
    """Traps 12, 13, 21 and 22: loads, promotions, cancellations and evictions mixed at random."""
    texts = [stage.say(token_ids(length, seed=90)) for length in (40, 90, 130)]
    texts += [stage.say(texts[1] + token_ids(25, seed=91))]
    token_bytes = 4 * 2 * 2 * 16 * 4
    engine, reader = stage.stepped(
        device_bytes=330 * token_bytes, host_bytes=(seed % 2) * 200 * token_bytes, max_batch_tokens=32
    )
    rng = random.Random(seed)
    prompts = [rng.choice(texts)[: rng.randrange(20, 160)] + token_ids(4, seed=n) for n in range(14)]
    handles: list[tuple[list[int], Handle]] = []
    while prompts or engine.has_work:
        if prompts and rng.random() < 0.2:
            prompt = prompts.pop()
            handles.append((prompt, submit(engine, prompt, rng.randrange(2, 12))))
        if rng.random() < 0.1:
            engine.prefetch(rng.choice(texts), rng.choice(texts))
        if handles and rng.random() < 0.05:
            rng.choice(handles)[1].cancel()
        reader.per_step = rng.randrange(3)
        engine.step()
        engine.check_integrity()
    for prompt, handle in handles:
        result = finish(engine, handle)
        wanted = stage.right(prompt, 12)
        assert result.token_ids == wanted[: len(result.token_ids)]
        assert result.usage.cached_tokens == result.loaded.total
    load_all(engine)
    assert engine.snapshot().num_waiting == 0
