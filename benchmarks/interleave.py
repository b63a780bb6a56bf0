"""How long an answer pauses while another conversation's long prompt is computed beside it.

With the starter, and with a random Llama of 100 million weights.
"""

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

from benchmarks.clock import Cost, cost_of
from benchmarks.random_llama import write_random_llama
from benchmarks.table import Row
from kvchat.engine import Engine, EngineConfig, Request, SamplingParams
from kvchat.engine.api.events import TokenEmitted
from kvchat.engine.results import Handle

PROMPT_LEN = 4096


def measure(quick: bool = False) -> list[Row]:
    rows = _measure("starter", "starter", num_tokens=60, num_rounds=2 if quick else 7)
    with TemporaryDirectory() as directory:
        path = str(write_random_llama(Path(directory)))
        rows += _measure("100 M", path, num_tokens=20, num_rounds=1 if quick else 3)
    return rows


def _measure(name: str, model: str, num_tokens: int, num_rounds: int) -> list[Row]:
    engine = Engine.load(model, EngineConfig(speculate="off"))
    alone, beside, chunks = [], [], []
    for round_ in range(-1, num_rounds):  # the first one warms up
        gap = _longest_gap(_decoding(engine, round_, num_tokens))
        chunk = _slowest_chunk(engine, round_)
        decoding = _decoding(engine, num_rounds + round_, num_tokens)
        engine.step()
        _submit(engine, [5 + (13 * index + round_) % 2500 for index in range(PROMPT_LEN)], 1)
        paused = _longest_gap(decoding)
        while engine.has_work:
            engine.step()
        if round_ >= 0:
            alone.append(gap)
            chunks.append(chunk)
            beside.append(paused)
    engine.close()
    return [
        row
        for kind, clock in (("wall_s", ""), ("cpu_s", "processor time"))
        for row in _rows(name, clock, *(_ms(costs, kind) for costs in (alone, chunks, beside)))
    ]


def _rows(name: str, clock: str, alone: list[float], chunks: list[float], beside: list[float]) -> list[Row]:
    ratios = [pause / (3 * gap + chunk) for gap, chunk, pause in zip(alone, chunks, beside, strict=True)]
    return [
        Row.of(f"{name}: longest gap alone", "ms", alone, clock),
        Row.of(f"{name}: slowest chunk alone", "ms", chunks, clock),
        Row.of(f"{name}: longest gap beside {PROMPT_LEN:,} tokens", "ms", beside, clock),
        Row.of(
            f"{name}: gap / (3 x alone + chunk)", "x", ratios, ", ".join(filter(None, ("at most 1", clock)))
        ),
    ]


def _ms(costs: list[Cost], kind: str) -> list[float]:
    return [getattr(cost, kind) * 1e3 for cost in costs]


def _submit(engine: Engine, prompt: list[int], num_tokens: int) -> Handle:
    sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    return engine.submit(Request(token_ids=tuple(prompt), sampling=sampling))


def _decoding(engine: Engine, seed: int, num_tokens: int) -> Handle:
    return _submit(engine, [7 + seed, 11, 13, 17 + seed], num_tokens)


def _longest_gap(handle: Handle) -> Cost:
    """Return the longest time between two tokens of a request, behind the first two, by each clock."""
    times = [(perf_counter(), process_time()) for event in handle if isinstance(event, TokenEmitted)]
    gaps = [(late[0] - early[0], late[1] - early[1]) for early, late in itertools.pairwise(times)][1:]
    return Cost(wall_s=max(wall_s for wall_s, _ in gaps), cpu_s=max(cpu_s for _, cpu_s in gaps))


def _slowest_chunk(engine: Engine, seed: int) -> Cost:
    """Return how long the slowest chunk of a long prompt takes by itself, by each clock."""
    _submit(engine, [9 + (17 * index + seed) % 2500 for index in range(PROMPT_LEN)], 1)
    costs = []
    while engine.has_work:
        costs.append(cost_of(engine.step))
    return Cost(wall_s=max(cost.wall_s for cost in costs), cpu_s=max(cost.cpu_s for cost in costs))
