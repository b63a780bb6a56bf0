"""Tokens per second with guessed tokens and without: where text repeats, and where it does not.

What is answered is given, so that both compute the same: the model's logits are computed and weighed as ever,
and then the next token of a text is taken. The text that repeats is the prompt's own document with a word
changed now and then, as when it is edited; the other is a page that has nothing to do with the prompt. One
thread by the processor's time: neighbours on its core count little.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time

import torch
import transformers
from torch import Tensor

from benchmarks.cpu.shapes import SHAPES
from benchmarks.table import Row as Figure
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.events import TokenEmitted
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.models.locate import locate_model
from kvchat.engine.sampling.sampler import SampledToken, Sampler, SamplingRow
from kvchat.engine.startup.assembly import build_parts
from kvchat.session.template.chat_template import ChatTemplate

ROUNDS = 5
PAGE_LEN = 600
NUM_TOKENS = 400
CHANGED_EVERY = 40
ROOT = Path(__file__).parent.parent
WEIGHTS = ("auto", "int8", "int4")


class Dictated(Sampler):
    """Weighs logits as any greedy sampler, and takes the tokens of a text."""

    def __init__(self, text: Sequence[int]) -> None:
        super().__init__(seed=0)
        self._text = text

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[list[SampledToken | None]]:
        super().sample(logits, [replace(row, draft=()) for row in rows for _ in (None, *row.draft)])
        return [self._follow(row) for row in rows]

    def _follow(self, row: SamplingRow) -> list[SampledToken | None]:
        place = len(row.token_ids)
        chosen: list[SampledToken | None] = []
        for number, drafted in enumerate((*row.draft, None)):
            chosen.append(SampledToken(self._text[place + number]))
            if self._text[place + number] != drafted:
                break
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A prompt and what is answered."""

    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def measure(*, quick: bool = False) -> list[Figure]:
    transformers.utils.logging.disable_progress_bar()
    starter = locate_model("starter").path
    tasks = _tasks(ChatTemplate.from_dir(starter).tokenizer.encode)
    num_rounds = 2 if quick else ROUNDS
    figures = _compare("starter", starter, "auto", tasks, num_rounds)
    with tempfile.TemporaryDirectory() as directory:
        write_shape(Path(directory))
        for weights in WEIGHTS[:1] if quick else WEIGHTS:
            name = f"360 M, {'bf16' if weights == 'auto' else weights}"
            figures += _compare(name, Path(directory), weights, tasks, num_rounds)
    return figures


def _tasks(encode: Callable[[str], Sequence[int]]) -> list[Task]:
    page = tuple(encode((ROOT / "docs" / "bundles.md").read_text()))[:PAGE_LEN]
    other = tuple(encode((ROOT / "docs" / "latents.md").read_text()))[:PAGE_LEN]
    edited = [token + 1 if place % CHANGED_EVERY == 7 else token for place, token in enumerate(page)]
    return [
        Task(name="edited page", prompt=page, answer=tuple(edited)),
        Task(name="other page", prompt=page, answer=other),
    ]


def _compare(
    name: str, model_dir: Path, weights: str, tasks: Sequence[Task], num_rounds: int
) -> list[Figure]:
    engines = {how: _open(model_dir, weights, how) for how in ("off", "auto")}
    figures = []
    for task in tasks:
        rates: dict[str, list[float]] = {how: [] for how in engines}
        notes = []
        for _ in range(num_rounds):
            for how, (engine, sampler) in engines.items():
                rate, note = _answer(engine, sampler, task)
                rates[how].append(rate)
                notes += [note] if how == "auto" else []
        ratios = [on / off for on, off in zip(rates["auto"], rates["off"], strict=True)]
        figures += [
            Figure.of(f"{name}, {task.name}, off", "tokens/s", rates["off"]),
            Figure.of(f"{name}, {task.name}, auto", "tokens/s", rates["auto"], notes[-1]),
            Figure.of(f"{name}, {task.name}, ratio", "x", ratios),
        ]
    for engine, _ in engines.values():
        engine.close()
    return figures


def _open(model_dir: Path, weights: str, speculate: str) -> tuple[Engine, Dictated]:
    config = EngineConfig(
        device="cpu", weights=weights, threads=1, max_context=4096, idle_demote_s=None, speculate=speculate
    )
    parts = build_parts("", model_dir, config)
    sampler = Dictated(())
    return Engine(replace(parts, sampler=sampler), clock=process_time), sampler


def _answer(engine: Engine, sampler: Dictated, task: Task) -> tuple[float, str]:
    """Return tokens per second behind the first one, and how many guesses were right."""
    sampler._text = (*task.prompt, *task.answer)
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    handle = engine.submit(Request(token_ids=task.prompt, sampling=sampling))
    while not any(isinstance(event, TokenEmitted) for event in engine.step()):
        pass
    start_s = process_time()
    while engine.has_work:
        engine.step()
    elapsed_s = process_time() - start_s
    engine.release(handle.sequence)
    assert handle.result is not None
    usage = handle.result.usage
    return (NUM_TOKENS - 1) / elapsed_s, f"{usage.accepted_tokens} of {usage.drafted_tokens} guesses right"


def write_shape(model_dir: Path) -> None:
    """Write the 360 M shape with random weights."""
    config = SHAPES["360m"].config(eos_token_id=None)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(model_dir)
