"""What quantised weights cost: perplexity, agreement on the next token, error of the logits, and bytes."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from benchmarks.random_llama import write_random_llama
from benchmarks.table import Row
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
    return rows


def _compare(name: str, model_dir: Path, texts: list[tuple[Tensor, Tensor]]) -> list[Row]:
    plain = load_model(model_dir, "float32", CPU)
    wanted = [_logits(plain.module, ids)[chosen] for ids, chosen in texts]
    rows = []
    for form, bits in QUANTISED.items():
        loaded = load_model(model_dir, "float32", CPU)
        list(quantise_linears(loaded.module, bits))
        ratios, agreements, errors = [], [], []
        for (ids, chosen), expected in zip(texts, wanted, strict=True):
            found = _logits(loaded.module, ids)[chosen]
            targets = ids[:, 1:][chosen]
            loss = functional.cross_entropy(found, targets) - functional.cross_entropy(expected, targets)
            ratios.append(loss.exp().item())
            agreements.append(100 * (found.argmax(-1) == expected.argmax(-1)).float().mean().item())
            errors.append(100 * ((found - expected).norm() / expected.norm()).item())
        size = 100 * loaded.weight_bytes / plain.weight_bytes
        rows += [
            Row.of(f"{name}, {form}: perplexity / float32", "x", ratios, "where it answers"),
            Row.of(f"{name}, {form}: same next token", "%", agreements, "greedy"),
            Row.of(f"{name}, {form}: error of the logits", "%", errors, "norm of the difference / norm"),
            Row.of(f"{name}, {form}: bytes / float32", "%", [size], "embedding and norms stay"),
        ]
    return rows


@torch.inference_mode()
def _logits(module: Any, ids: Tensor) -> Tensor:
    logits: Tensor = module(ids[:, :-1]).logits
    return logits.float()
