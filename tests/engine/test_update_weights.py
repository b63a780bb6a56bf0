"""Weights change when they are told to and not otherwise, all at once or not at all, and take their blocks'
names with them.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.engine.api.events import FinishReason, Loaded
from kvchat.engine.api.snapshot import Tier
from kvchat.errors import InvalidRequest, ModelError, ModelNotFound, ModelUnreadable, UnsupportedModel
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import (
    answer,
    edit_json,
    edit_tensors,
    finish,
    make_config,
    reference,
    save_model,
    submit,
    token_ids,
)

pytestmark = pytest.mark.cpu

PROMPT = token_ids(100)
Tensors = dict[str, torch.Tensor]


def rewrite(model_dir: Path, change: Callable[[Tensors], object]) -> Path:
    """Change a model's weights on disk."""
    edit_tensors(model_dir / "model.safetensors", change)
    return model_dir


def shuffle(tensors: Tensors) -> None:
    """Put the numbers of every matrix in another order."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in tensors.items():
        if tensor.ndim > 1:
            order = torch.randperm(tensor.numel(), generator=generator)
            tensors[name] = tensor.flatten()[order].view(tensor.shape).contiguous()


def other_of(model_dir: Path, target: Path) -> Path:
    """Write the same model with other weights."""
    return rewrite(Path(shutil.copytree(model_dir, target)), shuffle)


@pytest.fixture
def first(tiny: TinyModels, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny("qwen3"), tmp_path / "first"))


@pytest.fixture
def second(first: Path, tmp_path: Path) -> Path:
    return other_of(first, tmp_path / "second")


@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt2"])
def test_after_an_update_every_answer_is_that_of_the_new_weights(
    kind: str, tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    second = other_of(tiny(kind), tmp_path / "second")
    engine = open_engine(tiny(kind))
    assert answer(engine, PROMPT).token_ids == reference(tiny(kind)).answer(PROMPT, 24)
    info = engine.update_weights(second)
    result = answer(engine, PROMPT)
    assert result.usage.cached_tokens == 0
    assert result.token_ids == reference(second).answer(PROMPT, 24)
    assert info == engine.info
    assert info.fingerprint == engine.snapshot().fingerprint == open_engine(second).info.fingerprint


def test_blocks_of_the_old_weights_serve_nobody_until_these_come_back(
    first: Path, second: Path, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """Trap 1, within one engine: what both weights computed lies side by side, on disk too."""
    engine = open_engine(first, cache_dir=tmp_path / "cache", max_context=256, device_bytes=300_000)
    text = PROMPT + answer(engine, PROMPT).token_ids
    old = engine.info.fingerprint
    engine.update_weights(second)
    for seed in range(4):  # until nothing of the old weights is left on the device
        prompt = token_ids(150, seed=seed)
        result = answer(engine, prompt)
        assert result.usage.cached_tokens == 0
        assert result.token_ids == reference(second).answer(prompt, 24)
    assert answer(engine, text, 8).usage.cached_tokens == 0
    assert engine.update_weights(first).fingerprint == old
    result = answer(engine, text, 8)
    assert result.loaded == Loaded(disk=len(text) - 1)
    assert result.token_ids == reference(first).answer(text, 8)
    stored = {path.name for path in (tmp_path / "cache" / "blocks").iterdir()}
    assert stored == {old, open_engine(second).info.fingerprint}


def test_a_live_sequence_keeps_its_tokens_and_is_computed_anew(
    first: Path, second: Path, open_engine: OpenEngine, tmp_path: Path
) -> None:
    engine = open_engine(first, cache_dir=tmp_path / "cache")
    handle = submit(engine, PROMPT, 12)
    text = PROMPT + finish(engine, handle).token_ids
    child = engine.fork(handle.sequence)
    engine.update_weights(second)
    engine.check_integrity()
    for sequence in (handle.sequence, child):
        result = answer(engine, [*text, 7], 12, sequence)
        assert result.token_ids == reference(second).answer([*text, 7], 12)
    engine.close()
    again = open_engine(first, cache_dir=tmp_path / "cache")
    assert answer(again, [*text, 7], 12).loaded == Loaded(disk=len(text) - 1), "a tail was not saved in time"


def test_weights_do_not_change_under_a_request(first: Path, second: Path, open_engine: OpenEngine) -> None:
    engine = open_engine(first)
    handle = submit(engine, PROMPT, 12)
    for _ in range(2):  # waiting, then running
        with pytest.raises(InvalidRequest, match="cancel"):
            engine.update_weights(second)
        engine.step()
    assert finish(engine, handle).token_ids == reference(first).answer(PROMPT, 12)
    cancelled = submit(engine, PROMPT, 12)
    engine.step()
    engine.cancel(cancelled.request_id)
    engine.update_weights(second)
    assert finish(engine, cancelled).finish_reason is FinishReason.CANCELLED


def test_a_file_that_is_overwritten_under_an_engine_changes_nothing(
    first: Path, open_engine: OpenEngine
) -> None:
    """Trap 1: a mapped file would put other weights behind the old names, or end the process."""
    expected = reference(first).answer(PROMPT, 12)
    engine = open_engine(shutil.copytree(first, first.parent / "served"))
    path = first.parent / "served" / "model.safetensors"
    with open(path, "r+b") as file:
        file.write(bytes(path.stat().st_size))
        file.truncate(1000)
    assert answer(engine, PROMPT, 12).token_ids == expected


def put(name: str, place: tuple[int, ...], number: float) -> Callable[[Path], None]:
    """Return what puts a number into a tensor of a file."""
    return lambda weights: edit_tensors(weights, lambda tensors: tensors[name][place].fill_(number))


def halve(weights: Path) -> None:
    edit_json(weights.with_name("config.json"), dtype="bfloat16")
    edit_tensors(weights, lambda tensors: tensors.update({k: v.bfloat16() for k, v in tensors.items()}))


def turn_otherwise(weights: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 777.0}
    edit_json(weights.with_name("config.json"), rope_parameters=rope)


def replace_by(kind: str, **changes: Any) -> Callable[[Path], None]:
    """Return what writes another model in the place of one."""

    def write(weights: Path) -> None:
        shutil.rmtree(weights.parent)
        save_model(make_config(kind, **changes), weights.parent)

    return write


UP = "model.layers.3.mlp.up_proj.weight"
DAMAGES: dict[str, tuple[Callable[[Path], object], type[ModelError]]] = {
    "no such": (lambda weights: shutil.rmtree(weights.parent), ModelNotFound),
    "one NaN": (put(UP, (5, 7), float("nan")), ModelUnreadable),
    "one infinity": (put("model.norm.weight", (0,), float("inf")), ModelUnreadable),
    "half as precise": (halve, UnsupportedModel),
    "another rotary embedding": (turn_otherwise, UnsupportedModel),
    "wider": (replace_by("qwen3", intermediate_size=64), UnsupportedModel),
    "another class": (replace_by("gpt2"), UnsupportedModel),
}
"""What becomes of the weights' file, or of its directory."""


def test_an_update_that_fails_leaves_everything_as_it_was(
    first: Path, second: Path, open_engine: OpenEngine, tmp_path: Path
) -> None:
    engine = open_engine(first, cache_dir=tmp_path / "cache")
    handle = submit(engine, PROMPT, 12)
    text = PROMPT + finish(engine, handle).token_ids
    before = engine.snapshot(), engine.info
    for name, (damage, error) in DAMAGES.items():
        damaged = Path(shutil.copytree(second, tmp_path / name))
        damage(damaged / "model.safetensors")
        with pytest.raises(error):
            engine.update_weights(damaged)
        assert (engine.snapshot().sequences, engine.info) == (before[0].sequences, before[1]), name
    result = answer(engine, [*text, 7], 12, handle.sequence)
    assert result.usage.computed_tokens == 2
    assert result.token_ids == reference(first).answer([*text, 7], 12)
    assert engine.snapshot().tier(Tier.DISK).num_blocks > 0
