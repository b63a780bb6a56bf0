"""What quantised weights cost: perplexity, agreement on the next token, error of the logits, bytes, loading.

The model itself computes a prompt from parts of the weights that are expanded, an answer from their codes and
whole numbers made of the activations. Both are measured in float32: the whole text at once, and "decoded" a
few rows at a time. "prompts" are those of an engine in bfloat16, whose fused layers may round inputs to 8
bits: the tokens behind some of the places where the starter answers.
Loading is that of a whole engine: where nothing is kept, which quantises and keeps the result, and again,
which maps it.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache

from benchmarks.random_llama import write_random_llama
from benchmarks.table import Row, seconds
from kvchat.engine import Engine, EngineConfig, Request, SamplingParams
from kvchat.engine.api.events import TokenEmitted
from kvchat.engine.kernels.quantized_linear.native import MOST_ROWS
from kvchat.engine.models.checkpoints.prepared import QUANTIZED
from kvchat.engine.models.linear.quantized import quantize_linears
from kvchat.engine.models.load import load_model
from kvchat.engine.models.locate import locate_model
from tools.starter.batches import Batches
from tools.starter.corpus import GENERAL_MIX

CPU = torch.device("cpu")
ROUNDS = 5
NUM_SEQUENCES = 4
LENGTH = 512
SEED = 10**6  # no conversation of the training
NUM_PROMPTS = 24  # of each round
LEAST_LENGTH = 64  # of a prompt


def measure(*, quick: bool = False) -> list[Row]:
    num_rounds = 2 if quick else ROUNDS
    starter = locate_model("starter").path
    batches = Batches(Tokenizer.from_file(str(starter / "tokenizer.json")))
    texts = []
    for round_ in range(num_rounds):
        ids, weights = batches.draw(SEED + round_, NUM_SEQUENCES, LENGTH, GENERAL_MIX)
        texts.append((ids, weights[:, 1:] >= 1))
    rows = [*_compare("starter", starter, texts), *_prompts("starter", starter, texts)]
    with tempfile.TemporaryDirectory() as directory:
        ids = torch.randint(3, 32000, (1, 129), generator=torch.Generator().manual_seed(0))
        random = write_random_llama(Path(directory))
        random_texts = [(ids, torch.ones(1, 128, dtype=torch.bool))]
        rows += [
            *_compare("100 M random", random, random_texts),
            *_prompts("100 M random", random, random_texts),
        ]
        rows += _loads("100 M random", random, num_rounds)
    return rows


def _loads(name: str, model_dir: Path, num_rounds: int) -> Iterator[Row]:
    for form in QUANTIZED:
        first: list[float] = []
        again: list[float] = []
        for _ in range(num_rounds):
            with tempfile.TemporaryDirectory() as cache_dir:
                for times in (first, again):
                    times.append(seconds(partial(_load, model_dir, form, Path(cache_dir))))
        yield Row.of(f"{name}, {form}: loaded for the first time", "s", first, "quantised and kept")
        yield Row.of(f"{name}, {form}: loaded again", "s", again, "mapped")
        yield Row.of("  again, of the first time", "x", [b / a for a, b in zip(first, again, strict=True)])


def _load(model_dir: Path, form: str, cache_dir: Path) -> None:
    Engine.load(
        str(model_dir), EngineConfig(weights=form, cache_dir=cache_dir, device="cpu", device_bytes=1 << 26)
    ).close()


def _compare(name: str, model_dir: Path, texts: list[tuple[Tensor, Tensor]]) -> list[Row]:
    plain = load_model(model_dir, "float32", CPU)
    wanted = [_logits(plain.module, ids)[chosen] for ids, chosen in texts]
    ends = [ids[:, 1:][chosen] for ids, chosen in texts]
    steps = {"": LENGTH, " decoded": MOST_ROWS // len(texts[0][0])}
    rows = []
    for form, bits in QUANTIZED.items():
        loaded = load_model(model_dir, "float32", CPU)
        list(quantize_linears(loaded.module, bits))
        for how, num_tokens in steps.items():
            found = [_logits(loaded.module, ids, num_tokens)[chosen] for ids, chosen in texts]
            rows += _losses(f"{name}, {form}{how}", ends, wanted, found)
        size = 100 * loaded.weight_bytes / plain.weight_bytes
        rows.append(Row.of(f"{name}, {form}: bytes / float32", "%", [size], "embedding and norms stay"))
    return rows


def _prompts(name: str, model_dir: Path, texts: list[tuple[Tensor, Tensor]]) -> Iterator[Row]:
    """Compare the logits behind some prompts, computed from nothing by engines of each form."""
    plain = load_model(model_dir, "float32", CPU)
    wanted = [_logits(plain.module, ids) for ids, _ in texts]
    places = [_places(chosen) for _, chosen in texts]
    expected = [logits[tuple(at.T)] for logits, at in zip(wanted, places, strict=True)]
    ends = [ids[at[:, 0], 1 + at[:, 1]] for (ids, _), at in zip(texts, places, strict=True)]
    for form in ("bf16", *QUANTIZED):
        with tempfile.TemporaryDirectory() as cache_dir:
            config = EngineConfig(
                weights=form,
                dtype="bfloat16",
                cache_dir=Path(cache_dir),
                device="cpu",
                device_bytes=1 << 28,
                speculate="off",
            )
            with closing(Engine.load(str(model_dir), config)) as engine:
                found = [
                    torch.stack([_behind(engine, ids[row, : end + 1]) for row, end in at.tolist()])
                    for (ids, _), at in zip(texts, places, strict=True)
                ]
        logits = [_like(given, wanted) for given, wanted in zip(found, expected, strict=True)]
        yield from _losses(f"{name}, {form} prompts", ends, expected, logits)


def _places(chosen: Tensor) -> Tensor:
    """Return some places where the model answers: sequence and position [n, 2], far from each other."""
    places = chosen.nonzero()
    places = places[places[:, 1] >= LEAST_LENGTH]
    return places[torch.linspace(0, len(places) - 1, NUM_PROMPTS).long()]


def _like(logprobs: Tensor, logits: Tensor) -> Tensor:
    """Return logits of the same mean as others from log-probabilities, which differ from them by a number."""
    return logprobs - logprobs.mean(-1, keepdim=True) + logits.mean(-1, keepdim=True)


def _behind(engine: Engine, ids: Tensor) -> Tensor:
    """Return the log-probabilities of what follows a prompt, computed from nothing."""
    vocab_size = engine.info.vocab_size
    request = Request(
        token_ids=tuple(ids.tolist()),
        sampling=SamplingParams(max_tokens=1, logprobs=vocab_size, ignore_eos=True),
        namespace=str(time.monotonic_ns()),
    )
    (event,) = [event for event in engine.submit(request) if isinstance(event, TokenEmitted)]
    assert event.logprobs is not None
    found = torch.full((vocab_size,), float("-inf"))
    token_ids, values = zip(*event.logprobs.top, strict=True)
    found[list(token_ids)] = torch.tensor(values)
    engine.release(event.sequence)
    return found


def _losses(name: str, ends: list[Tensor], wanted: list[Tensor], found: list[Tensor]) -> list[Row]:
    """Compare logits [n, V] of each round; `ends`: the tokens [n] that follow."""
    ratios, agreements, errors = [], [], []
    for targets, expected, given in zip(ends, wanted, found, strict=True):
        loss = functional.cross_entropy(given, targets) - functional.cross_entropy(expected, targets)
        ratios.append(loss.exp().item())
        agreements.append(100 * (given.argmax(-1) == expected.argmax(-1)).float().mean().item())
        errors.append(100 * ((given - expected).norm() / expected.norm()).item())
    return [
        Row.of(f"{name}: perplexity / float32", "x", ratios, "where it answers"),
        Row.of(f"{name}: same next token", "%", agreements, "greedy"),
        Row.of(f"{name}: error of the logits", "%", errors, "norm of the difference / norm"),
    ]


@torch.inference_mode()
def _logits(module: Any, ids: Tensor, num_tokens: int = LENGTH) -> Tensor:
    """Return the logits of all but the last token, `num_tokens` of each sequence at a time."""
    cache = DynamicCache(config=module.config)
    parts = [module(part, past_key_values=cache).logits.float() for part in ids[:, :-1].split(num_tokens, 1)]
    return torch.cat(parts, 1)
