"""Resuming from disk and host memory: bytes beside a plain read, first tokens beside computing."""

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.shelf import Shelf, shelf
from benchmarks.table import Row, seconds
from kvchat.engine import Engine, EngineConfig, SamplingParams

ROUNDS = 5
BYTE_ROUNDS = 9
LENGTHS = (500, 2000, 6000)


def measure() -> list[Row]:
    with shelf() as stored:
        rows = [*_disk_rows(stored), *_host_rows(stored)]
    return rows + [row for length in LENGTHS for row in _measure(length)]


def _disk_rows(stored: Shelf) -> list[Row]:
    """Compare with one file of the same bytes, read from its start to its end."""
    out = memoryview(bytearray(stored.num_bytes))
    rows: list[Row] = []
    for name, begin in (("cold", stored.forget), ("warm", _nothing)):
        plain, resumed = [], []
        for _ in range(BYTE_ROUNDS):
            begin()
            plain.append(stored.num_bytes / 1e9 / seconds(lambda: stored.read_plain(out)))
            begin()
            resumed.append(stored.num_bytes / 1e9 / seconds(stored.resume))
        rows += [
            Row.of(f"{name} page cache: plain read", "GB/s", plain),
            Row.of(f"{name} page cache: disk to device pool", "GB/s", resumed),
            Row.of("ratio", "x", [a / b for a, b in zip(resumed, plain, strict=True)], "at least 0.7"),
        ]
    return rows


def _host_rows(stored: Shelf) -> list[Row]:
    """Compare with one copy of the same bytes."""
    target, source = bytearray(stored.num_bytes), bytearray(stored.num_bytes)
    host, tier = stored.in_host_memory()
    plain, resumed = [], []
    for _ in range(BYTE_ROUNDS):
        plain.append(stored.num_bytes / 1e9 / seconds(lambda: _copy(source, target)))
        resumed.append(stored.num_bytes / 1e9 / seconds(lambda: stored.resume(host, tier)))
    return [
        Row.of("host memory: plain copy", "GB/s", plain),
        Row.of("host memory to device pool", "GB/s", resumed),
        Row.of("ratio", "x", [a / b for a, b in zip(resumed, plain, strict=True)], "at least 0.7"),
    ]


def _copy(source: bytearray, target: bytearray) -> None:
    memoryview(target)[:] = source


def _nothing() -> None: ...


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
