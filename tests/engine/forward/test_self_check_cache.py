"""A model that passed its checks is held to them again when anything changes that its numbers follow from."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.forward.self_check_cache import (
    FILE_NAME,
    MAX_FINDINGS,
    MAX_MODELS,
    SelfCheckCache,
    subject_of,
)
from kvchat.engine.models.fingerprint import Checkpoint
from kvchat.engine.models.load import LoadedModel, load_model
from kvchat.engine.startup.assembly import build_parts
from kvchat.engine.startup.parts import EngineParts
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import VOCAB_SIZE, answer, reference, save_model, token_ids

pytestmark = pytest.mark.cpu

CPU = torch.device("cpu")
PROMPT = token_ids(50)
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.15,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


class Products(TorchDispatchMode):
    """Counts the products of linear layers; putting weights in order is none."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name()
        is_linear = "linear" in name and "reorder" not in name
        self.number += is_linear or name in ("aten::mm", "aten::addmm")
        return func(*args, **(kwargs or {}))


def started(model_dir: Path, cache_dir: Path, **settings: Any) -> tuple[EngineParts, int]:
    """Return what an engine consists of, and how many products its start took."""
    config = EngineConfig(device="cpu", block_size=16, cache_dir=cache_dir, **settings)
    with Products() as products:
        parts = build_parts("model", model_dir, config)
    return parts, products.number


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "num_probed"), [("llama", 0), ("qwen3", 0), ("gemma3", 0), ("gpt2", 16)])
def test_a_second_start_multiplies_nothing_and_makes_the_same_engine(
    kind: str, num_probed: int, dtype: str, tiny: TinyModels, tmp_path: Path
) -> None:
    """But for the probe, where layers are no linear ones: what they keep is looked at every time."""
    first, num_first = started(tiny(kind), tmp_path, dtype=dtype)
    second, num_second = started(tiny(kind), tmp_path, dtype=dtype)
    assert num_first > 40
    assert num_second == num_probed
    assert second.info == first.info


@pytest.mark.parametrize("kind", ["turned", "not turned", "with factor"])
def test_a_second_start_answers_as_transformers_does(
    kind: str, tmp_path: Path, open_engine: OpenEngine
) -> None:
    config = {
        "turned": lambda: transformers.LlamaConfig(**SIZES),
        "not turned": lambda: transformers.SmolLM3Config(**SIZES, no_rope_layers=[1, 0, 1, 0]),
        "with factor": lambda: transformers.Gemma2Config(**SIZES | {"head_dim": 16}, sliding_window=20),
    }[kind]
    model_dir = save_model(config(), tmp_path / "model")
    for _ in range(2):
        engine = open_engine(model_dir, cache_dir=tmp_path / "cache")
        assert engine.info.unfused is None
        assert answer(engine, PROMPT).token_ids == reference(model_dir).answer(PROMPT, 24)


def test_without_a_cache_directory_nothing_is_kept(tiny: TinyModels) -> None:
    config = EngineConfig(device="cpu", block_size=16)
    for _ in range(2):
        with Products() as products:
            build_parts("model", tiny("llama"), config)
        assert products.number > 40


def test_what_failed_fails_again_with_the_same_words(tmp_path: Path) -> None:
    model_dir = save_model(transformers.Ernie4_5Config(**SIZES), tmp_path / "model")
    said = [started(model_dir, tmp_path / "cache")[0].info.unfused for _ in range(2)]
    assert said[0] is not None
    assert "something else" in said[0]
    assert said[0] == said[1]


@pytest.fixture(scope="module")
def loaded(tiny: TinyModels) -> LoadedModel:
    return load_model(tiny("llama"), "float32", CPU)


CHECKPOINT = Checkpoint(weights=("ab" * 32,), config={"a": 1})


@pytest.mark.parametrize(
    "other",
    [
        Checkpoint(weights=("cd" * 32,), config={"a": 1}),
        Checkpoint(weights=("ab" * 32,), config={"a": 2}),
        Checkpoint(weights=("ab" * 32,), config={"a": 1}, adapter="ef"),
    ],
)
def test_another_checkpoint_has_another_name(other: Checkpoint, loaded: LoadedModel) -> None:
    assert subject_of(CHECKPOINT, loaded) != subject_of(other, loaded)
    assert subject_of(CHECKPOINT, loaded) == subject_of(replace(CHECKPOINT), loaded)


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: os.environ.update(ONEDNN_MAX_CPU_ISA="AVX2"),
        lambda: os.environ.update(TRITON_INTERPRET="1"),
    ],
    ids=["threads", "precision", "variable", "Triton"],
)
def test_what_a_process_computes_with_is_part_of_the_name(
    change: Callable[[], None], loaded: LoadedModel
) -> None:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    before = subject_of(CHECKPOINT, loaded)
    try:
        change()
        assert subject_of(CHECKPOINT, loaded) != before
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        for name in ("ONEDNN_MAX_CPU_ISA", "TRITON_INTERPRET"):
            os.environ.pop(name, None)
    assert subject_of(CHECKPOINT, loaded) == before


def test_findings_of_several_models_live_beside_each_other_and_the_oldest_go(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    for model in range(MAX_MODELS + 3):
        for finding in range(3):
            SelfCheckCache(file, f"{model}").keep(f"{finding}", model + finding)
    for finding in range(MAX_FINDINGS + 3):
        SelfCheckCache(file, "last").keep(f"{finding}", finding)
    models = [
        model for model in range(MAX_MODELS + 3) if SelfCheckCache(file, f"{model}").find("2") is not None
    ]
    assert models == list(range(4, MAX_MODELS + 3))
    last = SelfCheckCache(file, "last")
    assert [last.find(f"{number}") for number in (0, 2, 3, MAX_FINDINGS + 2)] == [
        None,
        None,
        3,
        MAX_FINDINGS + 2,
    ]
    assert file.stat().st_mode & 0o777 == 0o600
