"""Computing from the front while a throttled disk is read from the tail, beside either alone."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

from benchmarks.table import Row
from kvchat.engine import Engine, EngineConfig, Request, SamplingParams
from kvchat.engine.cache.block_operations import Fetch
from kvchat.engine.memory.reader import Reader
from kvchat.engine.models.locate import locate_model
from kvchat.engine.startup.assembly import build_parts
from kvchat.engine.tiering.load_choice import meeting

ROUNDS = 5
PROMPT_LEN = 4033
BLOCK_SIZE = 64
NUM_BLOCKS = PROMPT_LEN // BLOCK_SIZE
CHUNK = 512


def measure() -> list[Row]:
    computed, both, best = [], [], []
    with TemporaryDirectory() as directory:
        for round_ in range(ROUNDS):
            prompt = [5 + (11 * index + 13 * round_) % 2500 for index in range(PROMPT_LEN)]
            chunks = _store(prompt, Path(directory))
            computed.append(sum(chunks))
            block_s = sum(chunks) / NUM_BLOCKS  # as long as computing: then both are worth most
            both.append(_resume_s(prompt, Path(directory), block_s))
            best.append(_optimum_s(chunks, block_s))
    return [
        Row.of("all computed, or all loaded", "s", computed),
        Row.of("both at once", "s", both),
        Row.of("optimum of the formula", "s", best),
        Row.of("both / optimum", "x", [a / b for a, b in zip(both, best, strict=True)], "at most 1.15"),
    ]


def _store(prompt: list[int], directory: Path) -> list[float]:
    """Compute and save a prompt; return the seconds of its chunks."""
    engine = Engine.load("starter", EngineConfig(cache_dir=directory, max_batch_tokens=CHUNK))
    engine.submit(Request(token_ids=tuple(prompt), sampling=SamplingParams(max_tokens=1)))
    times = [perf_counter()]
    while engine.has_work:
        engine.step()
        times.append(perf_counter())
    engine.close()
    return [late - early for early, late in pairwise(times)][: PROMPT_LEN // CHUNK + 1]


def _resume_s(prompt: list[int], directory: Path, block_s: float) -> float:
    location = locate_model("starter")
    config = EngineConfig(cache_dir=directory, max_batch_tokens=CHUNK)
    parts = build_parts(location.name, location.path, config)
    moves_per_block = len(parts.manager.groups)
    fetch = _throttled(parts.mover.fetch, block_s / moves_per_block)
    engine = Engine(replace(parts, reader=Reader(fetch, max_bytes=2**40, num_threads=1)))
    warm_up = [7 + (3 * index) % 2500 for index in range(PROMPT_LEN)]
    engine.generate([warm_up], SamplingParams(max_tokens=1))
    (result,) = engine.generate([[*prompt, 7]], SamplingParams(max_tokens=1))
    engine.close()
    assert result.usage.cached_tokens > 0
    assert result.timings.ttft_s is not None
    return result.timings.ttft_s


def _throttled(fetch: Callable[[Fetch], bool], move_s: float) -> Callable[[Fetch], bool]:
    def slowly(move: Fetch) -> bool:
        end_s = perf_counter() + move_s
        is_there = fetch(move)
        sleep(max(0.0, end_s - perf_counter()))
        return is_there

    return slowly


def _optimum_s(chunks: list[float], block_s: float) -> float:
    per_chunk = CHUNK // BLOCK_SIZE

    def compute_s(num: int) -> float:
        whole, rest = divmod(num, per_chunk)
        part = chunks[whole] * rest / per_chunk if rest else 0.0
        return sum(chunks[:whole]) + part

    split = meeting(NUM_BLOCKS, compute_s, block_s)
    return max(compute_s(split), (NUM_BLOCKS - split) * block_s)
