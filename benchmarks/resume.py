"""First token of a resumed conversation from disk, beside computing it again."""

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.table import Row
from kvchat.engine import Engine, EngineConfig, SamplingParams

ROUNDS = 5
LENGTHS = (500, 2000, 6000)


def measure() -> list[Row]:
    return [row for length in LENGTHS for row in _measure(length)]


def _measure(length: int) -> list[Row]:
    resumed, computed = [], []
    for round_ in range(ROUNDS):
        prompt = [5 + (11 * index + 13 * round_) % 2500 for index in range(length)]
        with TemporaryDirectory() as directory:
            config = EngineConfig(cache_dir=Path(directory))
            computed.append(_first_token_s(config, prompt, expect_cached=False))
            resumed.append(_first_token_s(config, [*prompt, 7], expect_cached=True))
    return [
        Row.of(f"{length:,} tokens computed", "s", computed),
        Row.of(f"{length:,} tokens from disk", "s", resumed),
        Row.of("ratio", "x", [a / b for a, b in zip(computed, resumed, strict=True)]),
    ]


def _first_token_s(config: EngineConfig, prompt: list[int], *, expect_cached: bool) -> float:
    engine = Engine.load("starter", config)
    (result,) = engine.generate([prompt], SamplingParams(max_tokens=1))
    engine.close()
    assert (result.usage.cached_tokens > 0) is expect_cached
    assert result.timings.ttft_s is not None
    return result.timings.ttft_s
