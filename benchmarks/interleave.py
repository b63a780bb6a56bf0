"""How long an answer pauses while another conversation's long prompt is computed beside it.

With the starter, and with a random Llama of 100 million weights.
"""

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.random_llama import write_random_llama
from benchmarks.table import Row
from kvchat.engine import Engine, EngineConfig, Request, SamplingParams
from kvchat.engine.api.events import TokenEmitted
from kvchat.engine.handle import Handle

PROMPT_LEN = 4096


def measure(quick: bool = False) -> list[Row]:
    rows = _measure("starter", "starter", num_tokens=60, num_rounds=2 if quick else 7)
    with TemporaryDirectory() as directory:
        path = str(write_random_llama(Path(directory)))
        rows += _measure("100 M", path, num_tokens=20, num_rounds=1 if quick else 3)
    return rows


def _measure(name: str, model: str, num_tokens: int, num_rounds: int) -> list[Row]:
    engine = Engine.load(model, EngineConfig())
    alone, beside, chunks = [], [], []
    for round_ in range(-1, num_rounds):  # the first one warms up
        gap = max(_gaps(_decoding(engine, round_, num_tokens))[1:])
        chunk = _chunk_s(engine, round_)
        decoding = _decoding(engine, num_rounds + round_, num_tokens)
        engine.step()
        _submit(engine, [5 + (13 * index + round_) % 2500 for index in range(PROMPT_LEN)], 1)
        paused = max(_gaps(decoding)[1:])
        while engine.has_work:
            engine.step()
        if round_ >= 0:
            alone.append(gap)
            chunks.append(chunk)
            beside.append(paused)
    engine.close()
    bounds = [3 * gap + chunk for gap, chunk in zip(alone, chunks, strict=True)]
    return [
        Row.of(f"{name}: longest gap alone", "ms", [gap * 1e3 for gap in alone]),
        Row.of(f"{name}: slowest chunk alone", "ms", [chunk * 1e3 for chunk in chunks]),
        Row.of(f"{name}: longest gap beside {PROMPT_LEN:,} tokens", "ms", [gap * 1e3 for gap in beside]),
        Row.of(
            f"{name}: gap / (3 x alone + chunk)",
            "x",
            [a / b for a, b in zip(beside, bounds, strict=True)],
            "at most 1",
        ),
    ]


def _submit(engine: Engine, prompt: list[int], num_tokens: int) -> Handle:
    sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    return engine.submit(Request(token_ids=tuple(prompt), sampling=sampling))


def _decoding(engine: Engine, seed: int, num_tokens: int) -> Handle:
    return _submit(engine, [7 + seed, 11, 13, 17 + seed], num_tokens)


def _gaps(handle: Handle) -> list[float]:
    """Return the seconds between the tokens of a request."""
    times = [perf_counter() for event in handle if isinstance(event, TokenEmitted)]
    return [late - early for early, late in itertools.pairwise(times)]


def _chunk_s(engine: Engine, seed: int) -> float:
    """Return how long the slowest chunk of a long prompt takes by itself."""
    _submit(engine, [9 + (17 * index + seed) % 2500 for index in range(PROMPT_LEN)], 1)
    times = []
    while engine.has_work:
        start_s = perf_counter()
        engine.step()
        times.append(perf_counter() - start_s)
    return max(times)
