"""What a KV cache is for, and what paging is for: time of a token as its context grows, memory of chats.

With the starter model on one thread. Without a cache each token costs a pass over the whole text so far;
with one it costs a pass over itself. Memory is that of conversations whose lengths are spread like those of
chats (log-normal, median 400 tokens): a contiguous cache must be allocated at the model's full context for
each, blocks as they fill. Sliding layers give up what has left their window, so blocks may take less than
all tokens in all layers.
"""

from pathlib import Path
from random import Random
from statistics import median

from benchmarks.line_plot import Points, line_plot
from benchmarks.table import Row
from kvchat.engine import Engine, EngineConfig, Request, SamplingParams
from kvchat.engine.results import Result, collect

CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096)
NUM_TOKENS = 16
ROUNDS = 5
CONVERSATIONS = (1, 2, 4, 8, 16, 32)
MEDIAN_LEN, SPREAD = 400.0, 1.0
SVG_NAMES = ("basics-time.svg", "basics-memory.svg")


def measure(*, quick: bool = False, svg_dir: Path | None = None) -> list[Row]:
    """Measure both; with `svg_dir` draw a plot of each there."""
    rounds = 2 if quick else ROUNDS
    contexts = CONTEXTS[:4] if quick else CONTEXTS
    engine = Engine.load("starter", EngineConfig(threads=1, device_bytes=1 << 29, speculate="off", seed=0))
    try:
        times, time_lines = _times(engine, contexts, rounds)
        memory, memory_lines = _memory(engine, CONVERSATIONS[:3] if quick else CONVERSATIONS)
    finally:
        engine.close()
    if svg_dir is not None:
        plots = (
            line_plot("Time of one more token", "tokens so far", "ms", time_lines),
            line_plot("Memory of conversations", "conversations", "MiB", memory_lines),
        )
        for name, plot in zip(SVG_NAMES, plots, strict=True):
            (svg_dir / name).write_text(plot)
    return times + memory


def _times(engine: Engine, contexts: tuple[int, ...], rounds: int) -> tuple[list[Row], dict[str, Points]]:
    random = Random(0)
    rows, cached, uncached = [], [], []
    for length in contexts:
        with_s, without_s = [], []
        for _ in range(rounds):
            result = _answered(engine, _text(random, engine, length))
            assert result.timings.ttft_s is not None
            assert result.timings.decode_tokens_per_s is not None
            with_s.append(1 / result.timings.decode_tokens_per_s)
            without_s.append(result.timings.ttft_s)  # one pass over all of the text, nothing reused
        ratios = [without / with_ for with_, without in zip(with_s, without_s, strict=True)]
        cached.append((length, 1e3 * median(with_s)))
        uncached.append((length, 1e3 * median(without_s)))
        rows += [
            Row.of(f"{length} tokens: one more with a cache", "ms", [1e3 * one for one in with_s]),
            Row.of(f"{length} tokens: one more without", "ms", [1e3 * one for one in without_s]),
            Row.of("  without, of with", "x", ratios),
        ]
    return rows, {"without a cache": uncached, "with a cache": cached}


def _memory(engine: Engine, counts: tuple[int, ...]) -> tuple[list[Row], dict[str, Points]]:
    random = Random(1)
    lengths = [
        min(4000, max(16, round(random.lognormvariate(0, SPREAD) * MEDIAN_LEN))) for _ in range(max(counts))
    ]
    token_bytes = sum(group.block_bytes for group in engine.snapshot().groups) / engine.info.block_size
    context_bytes = engine.info.max_context * token_bytes
    rows: list[Row] = []
    lines: dict[str, list[tuple[float, float]]] = {"preallocated": [], "paged": [], "all tokens": []}
    live = 0
    for count in counts:
        for length in lengths[live:count]:
            request = Request(
                token_ids=tuple(_text(random, engine, length)), sampling=SamplingParams(max_tokens=1)
            )
            collect(engine.submit(request))
        live = count
        paged = sum(group.used_blocks * group.block_bytes for group in engine.snapshot().groups)
        needed = sum(lengths[:count]) * token_bytes
        for name, num_bytes in zip(lines, (count * context_bytes, paged, needed), strict=True):
            lines[name].append((count, num_bytes / 2**20))
        rows += [
            Row.of(f"{count} conversations: preallocated", "MiB", [count * context_bytes / 2**20]),
            Row.of(
                f"{count} conversations: paged", "MiB", [paged / 2**20], f"{sum(lengths[:count]):,} tokens"
            ),
            Row.of("  paged, of all tokens in all layers", "x", [paged / needed]),
        ]
    return rows, dict(lines)


def _answered(engine: Engine, token_ids: list[int]) -> Result:
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    (result,) = engine.generate([token_ids], sampling)
    return result


def _text(random: Random, engine: Engine, length: int) -> list[int]:
    """Return ids that nobody has seen before."""
    return [random.randrange(engine.info.vocab_size) for _ in range(length)]
