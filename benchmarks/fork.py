"""A fork beside computing: its time, its memory, its first token; and three answers from one prompt.

With the starter model. A fork goes on behind its whole sequence with eight new tokens; beside it a text of
that length is computed from nothing. Three answers are decoded from one prompt, and from three prompts of its
length that share nothing, one after the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

from benchmarks.line_plot import Points, line_plot
from benchmarks.table import Row
from kvchat.engine import Engine, EngineConfig, Request, SamplingParams
from kvchat.engine.api.ids import SequenceId
from kvchat.engine.results import Result, collect

LENGTHS = (250, 500, 1000, 2000, 4000)
NEW_LEN = 8
NUM_ANSWERS, ANSWER_LEN, PROMPT_LEN = 3, 32, 1000
ROUNDS = 5
SVG_NAME = "fork.svg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """What one fork cost. Blocks are those of all groups together.

    Args:
        num_blocks, later_blocks: that it took when it was made, and once it had gone on.
    """

    fork_s: float
    first_s: float
    computed_s: float
    num_blocks: int
    later_blocks: int


def measure(*, quick: bool = False, svg_dir: Path | None = None) -> list[Row]:
    """Measure forks and answers; with `svg_dir` draw how first tokens grow with the sequence."""
    rounds, lengths = (2, LENGTHS[:3]) if quick else (ROUNDS, LENGTHS)
    engine = Engine.load("starter", EngineConfig(device_bytes=1 << 29, speculate="off", seed=0))
    random = Random(0)
    rows: list[Row] = []
    lines: dict[str, list[tuple[float, float]]] = {"computed": [], "forked": []}
    try:
        _forked(engine, random, LENGTHS[0])  # the first of everything is slower
        for length in lengths:
            forks = [_forked(engine, random, length) for _ in range(rounds)]
            rows += _fork_rows(length, forks)
            lines["computed"].append((length, 1e3 * median(one.computed_s for one in forks)))
            lines["forked"].append((length, 1e3 * median(one.first_s for one in forks)))
        rows += _answer_rows(engine, random, rounds)
    finally:
        engine.close()
    if svg_dir is not None:
        plotted: dict[str, Points] = dict(lines)
        plot = line_plot("First token behind a sequence", "tokens of the sequence", "ms", plotted)
        (svg_dir / SVG_NAME).write_text(plot)
    return rows


def _fork_rows(length: int, forks: list[Forked]) -> Iterator[Row]:
    words = f"{length:,} tokens"
    yield Row.of(f"{words}: fork", "us", [1e6 * one.fork_s for one in forks])
    yield Row.of("  blocks that it takes", "blocks", [one.num_blocks for one in forks])
    yield Row.of("  once it has gone on", "blocks", [one.later_blocks for one in forks])
    yield Row.of(f"{words}: first token of a fork", "ms", [1e3 * one.first_s for one in forks])
    yield Row.of(f"{words}: computed from nothing", "ms", [1e3 * one.computed_s for one in forks])
    yield Row.of("  computed, of forked", "x", [one.computed_s / one.first_s for one in forks])


def _forked(engine: Engine, random: Random, length: int) -> Forked:
    said, new = _text(random, engine, length), _text(random, engine, NEW_LEN)
    first = _answered(engine, said)
    (sequence,) = first.sequences
    held = _used_blocks(engine)
    start_s = perf_counter()
    fork = engine.fork(sequence)
    fork_s = perf_counter() - start_s
    num_blocks = _used_blocks(engine) - held
    went_on = _answered(engine, (*said, *first.token_ids, *new), fork)
    later_blocks = _used_blocks(engine) - held
    other = _answered(engine, _text(random, engine, length + 1 + NEW_LEN))
    assert went_on.usage.computed_tokens == NEW_LEN + 1, "the last sampled token was never fed"
    assert other.usage.cached_tokens == 0
    for used in (*first.sequences, *went_on.sequences, *other.sequences):
        engine.release(used)
    assert went_on.timings.ttft_s is not None
    assert other.timings.ttft_s is not None
    return Forked(
        fork_s=fork_s,
        first_s=went_on.timings.ttft_s,
        computed_s=other.timings.ttft_s,
        num_blocks=num_blocks,
        later_blocks=later_blocks,
    )


def _answer_rows(engine: Engine, random: Random, rounds: int) -> list[Row]:
    together, apart, shared, alone = [], [], [], []
    for _ in range(rounds):
        seconds, num_blocks = _answers(engine, [_text(random, engine, PROMPT_LEN)], NUM_ANSWERS)
        together.append(seconds)
        shared.append(num_blocks)
        prompts = [_text(random, engine, PROMPT_LEN) for _ in range(NUM_ANSWERS)]
        seconds, num_blocks = _answers(engine, prompts, 1)
        apart.append(seconds)
        alone.append(num_blocks)
    words = f"{NUM_ANSWERS} answers"
    ratios = [b / a for a, b in zip(together, apart, strict=True)]
    return [
        Row.of(f"{words} of one prompt", "s", together, f"{PROMPT_LEN:,} tokens, {ANSWER_LEN} each"),
        Row.of(f"{words} of as many prompts", "s", apart),
        Row.of("  of as many, of one", "x", ratios),
        Row.of(f"{words} of one prompt: held", "blocks", shared),
        Row.of(f"{words} of as many prompts: held", "blocks", alone),
    ]


def _answers(engine: Engine, prompts: list[tuple[int, ...]], num: int) -> tuple[float, int]:
    """Return the seconds that answers take one after the other, and the blocks that they hold at the end."""
    sampling = SamplingParams(max_tokens=ANSWER_LEN, n=num, temperature=1.0, ignore_eos=True)
    held, start_s = _used_blocks(engine), perf_counter()
    results = [collect(engine.submit(Request(token_ids=prompt, sampling=sampling))) for prompt in prompts]
    seconds, num_blocks = perf_counter() - start_s, _used_blocks(engine) - held
    for result in results:
        for sequence in result.sequences:
            engine.release(sequence)
    return seconds, num_blocks


def _answered(engine: Engine, token_ids: tuple[int, ...], sequence: SequenceId | None = None) -> Result:
    sampling = SamplingParams(max_tokens=1, ignore_eos=True)
    return collect(engine.submit(Request(token_ids=token_ids, sampling=sampling, sequence=sequence)))


def _used_blocks(engine: Engine) -> int:
    return sum(group.used_blocks for group in engine.snapshot().groups)


def _text(random: Random, engine: Engine, length: int) -> tuple[int, ...]:
    """Return ids that nobody has seen before."""
    return tuple(random.randrange(engine.info.vocab_size) for _ in range(length))
