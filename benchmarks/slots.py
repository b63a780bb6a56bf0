"""Slots that are allocated and hold no token, over twenty conversations of mixed length."""

from random import Random

from benchmarks.table import Row
from kvchat.engine import Engine, EngineConfig, Request, SamplingParams
from kvchat.engine.formats.pool_sizing import window_blocks

NUM_SESSIONS = 20
MEAN_LEN = 1000
ROUNDS = 3


def measure() -> list[Row]:
    empty, windows = [], []
    for round_ in range(ROUNDS):
        engine = Engine.load("starter", EngineConfig(speculate="off"))
        random = Random(round_)
        lengths = [round(random.uniform(0.3, 1.7) * MEAN_LEN) for _ in range(NUM_SESSIONS)]
        lengths[-1] += max(0, NUM_SESSIONS * MEAN_LEN - sum(lengths))
        for length in lengths:
            prompt = tuple(random.randrange(5, 2500) for _ in range(length))
            list(engine.submit(Request(token_ids=prompt, sampling=SamplingParams(max_tokens=1))))
        snapshot = engine.snapshot()
        full = next(group for group in snapshot.groups if group.kind == "full")
        sliding = next(group for group in snapshot.groups if group.kind == "sliding")
        num_slots = full.used_blocks * snapshot.block_size
        empty.append(100 * (1 - sum(branch.num_tokens for branch in snapshot.sequences) / num_slots))
        assert sliding.window is not None
        most = window_blocks(sliding.window, snapshot.block_size)
        windows.append(max(branch.blocks_per_group[sliding.group] for branch in snapshot.sequences) / most)
        engine.close()
    return [
        Row.of("allocated slots without a token", "%", empty, "full layers; at most 4"),
        Row.of("most blocks of a window / ceil(W/64)+1", "x", windows, "sliding layers; at most 1"),
    ]
