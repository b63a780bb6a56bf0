"""Resuming from disk and host memory: bytes beside a plain read, first tokens beside computing."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.block_store import BLOCK_SIZE, NUM_BLOCKS, StoredBlocks, block_store, forget
from benchmarks.llama_cpp import LlamaCpp
from benchmarks.table import Row, seconds
from kvchat.engine import Engine, EngineConfig, SamplingParams
from kvchat.engine.memory.aligned_memory import prefault

ROUNDS = 5
BYTE_ROUNDS = 9
LENGTHS = (500, 2000, 6000)
WAYS = {"file": "llama_state_load_file", "bytes": "llama-cpp-python's load_state of a file's bytes"}


def measure(llama_cpp: Path | None = None) -> list[Row]:
    """Args:
    llama_cpp: an interpreter that has llama-cpp-python and gguf; None: no comparison with it.
    """
    with block_store() as stored:
        rows = [*disk_rows(stored), *_first_rows(stored), *_peer_rows(stored, llama_cpp), *_host_rows(stored)]
    return rows + [row for length in LENGTHS for row in _measure(length)]


def disk_rows(stored: StoredBlocks) -> list[Row]:
    """Compare with one file of the same bytes, read from its start to its end."""
    out = memoryview(bytearray(stored.num_bytes))
    rows: list[Row] = []
    for name, begin in (("cold", forget), ("warm", _ignore)):
        plain, resumed = [], []
        stored.read_plain(out)
        stored.resume()
        for _ in range(BYTE_ROUNDS):
            begin(stored.files)
            plain.append(stored.num_bytes / 1e9 / seconds(lambda: stored.read_plain(out)))
            begin(stored.files)
            resumed.append(stored.num_bytes / 1e9 / seconds(stored.resume))
        rows += [
            Row.of(f"{name} page cache: plain read", "GB/s", plain),
            Row.of(f"{name} page cache: disk to device pool", "GB/s", resumed),
            Row.of("ratio", "x", [a / b for a, b in zip(resumed, plain, strict=True)], "at least 0.7"),
        ]
    return rows


def _first_rows(stored: StoredBlocks) -> list[Row]:
    """Resume right after a start, from a warm page cache: into a pool of which no page was written, and into
    one whose first pages the system was asked for while the process began, as an engine does. Beside them
    into one that was resumed into before, which tells what a new pool costs from what the machine does.
    """
    out = memoryview(bytearray(stored.num_bytes))
    plain, untouched, prefaulted, later = [], [], [], []
    stored.resume()
    for _ in range(BYTE_ROUNDS):
        plain.append(stored.num_bytes / 1e9 / seconds(lambda: stored.read_plain(out)))
        new, begun = stored.new_pool(), stored.new_pool()
        prefault(begun.first_runs(stored.num_bytes)).join()
        untouched.append(stored.num_bytes / 1e9 / seconds(partial(stored.resume, pool=new)))
        prefaulted.append(stored.num_bytes / 1e9 / seconds(partial(stored.resume, pool=begun)))
        later.append(stored.num_bytes / 1e9 / seconds(stored.resume))
    return [
        Row.of("warm page cache, first resume of a process: plain read", "GB/s", plain),
        Row.of("disk to a pool of which no page was written", "GB/s", untouched),
        Row.of("ratio", "x", [a / b for a, b in zip(untouched, plain, strict=True)]),
        Row.of("disk to the pool as an engine begins with it", "GB/s", prefaulted),
        Row.of("ratio", "x", [a / b for a, b in zip(prefaulted, plain, strict=True)], "at least 0.7"),
        Row.of("disk to a pool that was resumed into before", "GB/s", later),
        Row.of(
            "ratio of the first resume to that", "x", [a / b for a, b in zip(prefaulted, later, strict=True)]
        ),
    ]


def _peer_rows(stored: StoredBlocks, python: Path | None) -> list[Row]:
    """Compare with llama.cpp's restore of as many bytes of keys and values from its file."""
    if python is None:
        print("  llama.cpp is left out: --llama-cpp PYTHON names an interpreter that has it")
        return []
    rows: list[Row] = []
    with (
        TemporaryDirectory() as directory,
        LlamaCpp(python, Path(directory), NUM_BLOCKS * BLOCK_SIZE) as peer,
    ):
        assert peer.num_bytes == stored.num_bytes
        for name, begin in (("cold", forget), ("warm", _ignore)):
            restored: dict[str, list[float]] = {way: [] for way in peer.files}
            resumed = []
            for _ in range(BYTE_ROUNDS):
                for way, path in peer.files.items():
                    begin([path])
                    restored[way].append(peer.restore_s(way))
                begin(stored.files)
                resumed.append(seconds(stored.resume))
            rows.append(Row.of(f"{name} page cache: disk to device pool", "s", resumed))
            for way, times in restored.items():
                ratios = [a / b for a, b in zip(times, resumed, strict=True)]
                rows += [
                    Row.of(f"{name} page cache: {WAYS[way]}", "s", times),
                    Row.of("ratio", "x", ratios, "at least 2"),
                ]
    return rows


def _host_rows(stored: StoredBlocks) -> list[Row]:
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


def _ignore(_: Iterable[Path]) -> None: ...


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
