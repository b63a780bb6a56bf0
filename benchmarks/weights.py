"""What quantised weights cost: perplexity, agreement on the next token, error of the logits, bytes, loading.

A prompt is computed from parts of the weights that are expanded, an answer from their codes and whole numbers
made of the activations. Both are measured: the whole text at once, and "decoded" a few rows at a time.
Loading is that of a whole engine: where nothing is kept, which quantises and keeps the result, and again,
which maps it.
"""

import tempfile
from collections.abc import Iterator
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
from kvchat.engine import Engine, EngineConfig
from kvchat.engine.kernels.quantised_linear.native import MOST_ROWS
from kvchat.engine.models.load import load_model
from kvchat.engine.models.locate import locate_model
from kvchat.engine.models.prepared import QUANTISED
from kvchat.engine.models.quantised_linear import quantise_linears
from kvchat.starter.batches import Batches
from kvchat.starter.corpus import GENERAL_MIX

CPU = torch.device("cpu")
ROUNDS = 5
NUM_SEQUENCES = 4
LENGTH = 512
SEED = 10**6  # no conversation of the training


def measure(*, quick: bool = False) -> list[Row]:
    num_rounds = 2 if quick else ROUNDS
    starter = locate_model("starter").path
    batches = Batches(Tokenizer.from_file(str(starter / "tokenizer.json")))
    texts = []
    for round_ in range(num_rounds):
        ids, weights = batches.draw(SEED + round_, NUM_SEQUENCES, LENGTH, GENERAL_MIX)
        texts.append((ids, weights[:, 1:] >= 1))
    rows = _compare("starter", starter, texts)
    with tempfile.TemporaryDirectory() as directory:
        ids = torch.randint(3, 32000, (1, 129), generator=torch.Generator().manual_seed(0))
        random = write_random_llama(Path(directory))
        rows += _compare("100 M random", random, [(ids, torch.ones(1, 128, dtype=torch.bool))])
        rows += _loads("100 M random", random, num_rounds)
    return rows


def _loads(name: str, model_dir: Path, num_rounds: int) -> Iterator[Row]:
    for form in QUANTISED:
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
    steps = {"": LENGTH, " decoded": MOST_ROWS // len(texts[0][0])}
    rows = []
    for form, bits in QUANTISED.items():
        loaded = load_model(model_dir, "float32", CPU)
        list(quantise_linears(loaded.module, bits))
        for how, num_tokens in steps.items():
            found = [_logits(loaded.module, ids, num_tokens)[chosen] for ids, chosen in texts]
            rows += _losses(f"{name}, {form}{how}", texts, wanted, found)
        size = 100 * loaded.weight_bytes / plain.weight_bytes
        rows.append(Row.of(f"{name}, {form}: bytes / float32", "%", [size], "embedding and norms stay"))
    return rows


def _losses(
    name: str, texts: list[tuple[Tensor, Tensor]], wanted: list[Tensor], found: list[Tensor]
) -> list[Row]:
    ratios, agreements, errors = [], [], []
    for (ids, chosen), expected, given in zip(texts, wanted, found, strict=True):
        targets = ids[:, 1:][chosen]
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
