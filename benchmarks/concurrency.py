"""Sixteen conversations at once: beside one alone, and beside transformers on the same work.

Two models: the starter, where the calls decide, and a random Llama of 100 million weights, where reading them
decides. Every round has prompts of its own, so nothing is reused. The peers are transformers' continuous
batching, with the settings that were the fastest of those tried (sdpa, pages of 64, as many tokens per step
as kvchat, its manager kept between rounds, a cache that just holds the work), and its `generate` on one batch
of prompts of one length, which no conversations ever have.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from logging import ERROR, getLogger
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers

from benchmarks.clock import Cost, cost_of
from benchmarks.random_llama import write_random_llama
from benchmarks.table import Row
from kvchat.engine import Engine, EngineConfig, Request, SamplingParams
from kvchat.engine.models.locate import locate_model

NUM_SESSIONS = 16
PROMPT_LEN = 128
NUM_TOKENS = 64
PAGE_SIZE = 64
BATCH_TOKENS = 512

ALONE = "kvchat, one conversation"
TOGETHER = "kvchat, 16 conversations"
BATCHING = "transformers, continuous batching"
PADDED = "transformers, one padded batch"
STEP_ALONE = "step of one conversation"
STEP_TOGETHER = "step of 16 conversations"

Prompts = list[list[int]]


@dataclass(slots=True)
class Measured:
    """Costs by what was measured, a round each."""

    costs: dict[str, list[Cost]] = field(default_factory=dict)

    def add(self, name: str, cost: Cost) -> None:
        self.costs.setdefault(name, []).append(cost)

    def rates(self, name: str, kind: str) -> list[float]:
        """Return tokens per second of each round; `kind`: wall_s or cpu_s."""
        num_tokens = 1 if name in (STEP_ALONE, STEP_TOGETHER) else NUM_TOKENS
        num_sessions = 1 if name in (ALONE, STEP_ALONE) else NUM_SESSIONS
        return [num_sessions * num_tokens / getattr(cost, kind) for cost in self.costs[name]]

    def ratios(self, name: str, other: str, kind: str) -> list[float]:
        return [a / b for a, b in zip(self.rates(name, kind), self.rates(other, kind), strict=True)]


def measure(quick: bool = False) -> list[Row]:
    transformers.utils.logging.set_verbosity_error()
    getLogger("ContinuousBatchingLogger").setLevel(ERROR)
    rows = _measure("starter", locate_model("starter").path, num_rounds=2 if quick else 5)
    with TemporaryDirectory() as directory:
        path = write_random_llama(Path(directory))
        rows += _measure("100 M", path, num_rounds=1 if quick else 3)
    return rows


def _measure(model: str, path: Path, num_rounds: int) -> list[Row]:
    engine = Engine.load(str(path), EngineConfig(max_batch_tokens=BATCH_TOKENS, speculate="off"))
    peer = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa").eval()
    ways: dict[str, Callable[[Prompts], object]] = {
        TOGETHER: lambda prompts: _generate(engine, prompts),
        BATCHING: lambda prompts: _generate_batch(peer, prompts),
        PADDED: lambda prompts: _generate_padded(peer, prompts),
    }
    measured = Measured()
    for round_ in range(-1, num_rounds):  # the first one warms up
        kept = measured if round_ >= 0 else Measured()
        alone = _prompts(1, 100 + round_)
        kept.add(ALONE, cost_of(lambda alone=alone: _generate(engine, alone)))
        _decode_costs(engine, kept, round_)
        for number, (name, run) in enumerate(ways.items()):
            prompts = _prompts(NUM_SESSIONS, 10 * round_ + number)
            kept.add(name, cost_of(lambda run=run, prompts=prompts: run(prompts)))
    engine.close()
    with suppress(Exception):  # it says that it does not run, though it does
        peer._cached_continuous_batching_manager.stop(block=True)
    return _rows(model, measured)


def _rows(model: str, measured: Measured) -> list[Row]:
    rows = []
    for kind, clock in (("wall_s", ""), ("cpu_s", "processor time")):
        rows += [
            Row.of(f"{model}: {name}", "tokens/s", measured.rates(name, kind), clock)
            for name in (ALONE, TOGETHER, BATCHING, PADDED)
        ]
        for words, name, other, target in (
            ("16 / 1, prompts included", TOGETHER, ALONE, "at least 6"),
            ("16 / 1, answers alone", STEP_TOGETHER, STEP_ALONE, "at least 6"),
            ("kvchat / continuous batching", TOGETHER, BATCHING, "at least 1"),
            ("kvchat / padded batch", TOGETHER, PADDED, ""),
        ):
            note = ", ".join(filter(None, (target, clock)))
            rows.append(Row.of(f"{model}: {words}", "x", measured.ratios(name, other, kind), note))
    return rows


def _prompts(count: int, seed: int) -> Prompts:
    return [
        [5 + (7 * index + 31 * number + 977 * seed) % 2500 for index in range(PROMPT_LEN)]
        for number in range(count)
    ]


def _sampling(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True)


def _generate(engine: Engine, prompts: Prompts) -> object:
    return engine.generate(prompts, _sampling(NUM_TOKENS))


def _decode_costs(engine: Engine, measured: Measured, round_: int) -> None:
    """Measure steps in which every conversation gets one token and no prompt is computed; the median one."""
    for name, count in ((STEP_ALONE, 1), (STEP_TOGETHER, NUM_SESSIONS)):
        prompts = _prompts(count, 1000 + 7 * round_ + count)
        handles = [
            engine.submit(Request(token_ids=tuple(prompt), sampling=_sampling(NUM_TOKENS // 2)))
            for prompt in prompts
        ]
        num_first = -(-count * PROMPT_LEN // BATCH_TOKENS) + 1
        for _ in range(num_first):
            engine.step()
        costs = [cost_of(engine.step) for _ in range(NUM_TOKENS // 2 - num_first - 2)]
        while engine.has_work:
            engine.step()
        for handle in handles:
            engine.release(handle.sequence)
        middle = len(costs) // 2
        measured.add(
            name,
            Cost(
                wall_s=sorted(cost.wall_s for cost in costs)[middle],
                cpu_s=sorted(cost.cpu_s for cost in costs)[middle],
            ),
        )


def _generate_batch(peer: Any, prompts: Prompts) -> None:
    settings = transformers.GenerationConfig(
        max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    num_pages = -(-(PROMPT_LEN + NUM_TOKENS) // PAGE_SIZE)
    batching = transformers.ContinuousBatchingConfig(
        page_size=PAGE_SIZE,
        num_blocks=len(prompts) * (num_pages + 1) + 8,
        max_batch_tokens=BATCH_TOKENS,
        use_cuda_graph=False,
        use_async_batching=False,
    )
    results = peer.generate_batch(
        prompts,
        generation_config=settings,
        continuous_batching_config=batching,
        persistent_manager=True,
        warmup=False,
    )
    assert sum(len(result.generated_tokens) for result in results.values()) == len(prompts) * NUM_TOKENS


@torch.inference_mode()
def _generate_padded(peer: Any, prompts: Prompts) -> None:
    peer.set_attn_implementation("sdpa")  # continuous batching leaves its own
    peer.generate(
        torch.tensor(prompts),
        max_new_tokens=NUM_TOKENS,
        min_new_tokens=NUM_TOKENS,
        do_sample=False,
        pad_token_id=0,
    )
