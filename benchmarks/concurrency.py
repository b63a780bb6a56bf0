"""Sixteen conversations decoded together, beside one alone."""

from time import perf_counter

from benchmarks.table import Row
from kvchat.engine import Engine, EngineConfig, SamplingParams

ROUNDS = 3
NUM_SESSIONS = 16
PROMPT_LEN = 128
NUM_TOKENS = 64


def measure() -> list[Row]:
    engine = Engine.load("starter", EngineConfig())
    alone, together = [], []
    for round_ in range(ROUNDS):
        prompts = [
            [5 + (7 * index + 31 * number + 977 * round_) % 2500 for index in range(PROMPT_LEN)]
            for number in range(NUM_SESSIONS + 1)
        ]
        alone.append(_engine_rate(engine, prompts[:1]))
        together.append(_engine_rate(engine, prompts[1:]))
    engine.close()
    return [
        Row.of("one conversation", "tokens/s", alone),
        Row.of(f"{NUM_SESSIONS} conversations", "tokens/s", together),
        Row.of("together / alone", "x", [a / b for a, b in zip(together, alone, strict=True)]),
    ]


def _engine_rate(engine: Engine, prompts: list[list[int]]) -> float:
    """Return generated tokens per second, prompts included in the time."""
    start_s = perf_counter()
    engine.generate(prompts, SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True))
    return len(prompts) * NUM_TOKENS / (perf_counter() - start_s)
