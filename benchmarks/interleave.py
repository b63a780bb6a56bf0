"""How long an answer pauses while another conversation's long prompt is computed beside it."""

import itertools
from time import perf_counter

from benchmarks.table import Row
from kvchat.engine import Engine, EngineConfig, Request, SamplingParams
from kvchat.engine.api.events import TokenEmitted
from kvchat.engine.handle import Handle

ROUNDS = 3
PROMPT_LEN = 4096
NUM_TOKENS = 200


def measure() -> list[Row]:
    engine = Engine.load("starter", EngineConfig())
    alone, beside, chunks = [], [], []
    for round_ in range(ROUNDS):
        alone.append(max(_gaps(engine, _decoding(engine, round_))[1:]))
        chunks.append(_chunk_s(engine, round_))
        decoding = _decoding(engine, ROUNDS + round_)
        engine.step()
        _submit(engine, [5 + (13 * index + round_) % 2500 for index in range(PROMPT_LEN)], 1)
        beside.append(max(_gaps(engine, decoding)[1:]))
        while engine.has_work:
            engine.step()
    engine.close()
    bounds = [3 * gap + chunk for gap, chunk in zip(alone, chunks, strict=True)]
    return [
        Row.of("longest gap alone", "ms", [gap * 1e3 for gap in alone]),
        Row.of("one chunk of prompt alone", "ms", [chunk * 1e3 for chunk in chunks]),
        Row.of(f"longest gap beside a prompt of {PROMPT_LEN:,}", "ms", [gap * 1e3 for gap in beside]),
        Row.of(
            "gap / (3 x alone + chunk)",
            "x",
            [a / b for a, b in zip(beside, bounds, strict=True)],
            "at most 1",
        ),
    ]


def _submit(engine: Engine, prompt: list[int], num_tokens: int) -> Handle:
    sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    return engine.submit(Request(token_ids=tuple(prompt), sampling=sampling))


def _decoding(engine: Engine, seed: int) -> Handle:
    return _submit(engine, [7 + seed, 11, 13, 17 + seed], NUM_TOKENS)


def _gaps(engine: Engine, handle: Handle) -> list[float]:
    """Return the seconds between the tokens of a request."""
    times = [perf_counter() for event in handle if isinstance(event, TokenEmitted)]
    return [late - early for early, late in itertools.pairwise(times)]


def _chunk_s(engine: Engine, seed: int) -> float:
    """Return how long the last full chunk of a long prompt takes by itself, the slowest one."""
    _submit(engine, [9 + (17 * index + seed) % 2500 for index in range(PROMPT_LEN)], 1)
    times = []
    while engine.has_work:
        start_s = perf_counter()
        engine.step()
        times.append(perf_counter() - start_s)
    return max(times)
