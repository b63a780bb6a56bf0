"""A directory is loaded whole and without running its code, or refused with a reason."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from kvchat.engine.models.load import LoadedModel, load_model
from kvchat.errors import ModelUnreadable, UnsupportedModel
from tests.engine.conftest import TinyModels
from tests.engine.tiny_models import edit_json, edit_tensors

pytestmark = pytest.mark.cpu

CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"


def load(model_dir: Path, dtype: str = "auto") -> LoadedModel:
    return load_model(model_dir, dtype, CPU)


@pytest.fixture
def copy(tiny: TinyModels, tmp_path: Path) -> Path:
    """A Llama of one's own, to be damaged."""
    return shutil.copytree(tiny("llama"), tmp_path / "model")


def test_a_model_says_what_it_is(tiny: TinyModels) -> None:
    loaded = load(tiny("gemma3", eos_token_id=[7, 9]))
    assert (loaded.vocab_size, loaded.num_layers, loaded.max_context) == (512, 6, 1024)
    assert loaded.eos_token_ids == {7, 9}
    assert loaded.dtype == "float32"
    assert not loaded.module.training
    assert not any(parameter.requires_grad for parameter in loaded.module.parameters())


@pytest.mark.parametrize(
    ("in_config", "in_generation", "found"),
    [(5, None, {5}), ([5, 6], None, {5, 6}), (5, [6, 8], {5, 6, 8}), (None, None, set())],
)
def test_every_end_id_counts_wherever_it_is_written(
    in_config: object, in_generation: object, found: set[int], copy: Path
) -> None:
    edit_json(copy / "config.json", eos_token_id=in_config)
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": in_generation}))
    assert load(copy).eos_token_ids == found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_come_in_the_dtype_that_was_asked_for(dtype: str, tiny: TinyModels) -> None:
    loaded = load(tiny("llama"), dtype)
    assert loaded.dtype == dtype
    assert {parameter.dtype for parameter in loaded.module.parameters()} == {getattr(torch, dtype)}


def test_the_dtype_of_the_checkpoint_is_kept(copy: Path) -> None:
    edit_json(copy / "config.json", dtype="bfloat16")
    edit_tensors(
        copy / WEIGHTS, lambda weights: weights.update({k: v.bfloat16() for k, v in weights.items()})
    )
    assert load(copy).dtype == "bfloat16"


# Damage


def test_weights_that_are_missing_or_cut_short_are_refused(copy: Path) -> None:
    path = copy / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelUnreadable, match="cannot be loaded"):
        load(copy)
    path.unlink()
    with pytest.raises(ModelUnreadable, match="cannot be loaded"):
        load(copy)


def test_a_pickle_is_never_opened(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(ModelUnreadable):
        load(copy)


def test_a_checkpoint_that_lacks_a_weight_is_refused_instead_of_filled_with_noise(copy: Path) -> None:
    edit_tensors(copy / WEIGHTS, lambda weights: weights.pop("model.layers.2.mlp.up_proj.weight"))
    with pytest.raises(ModelUnreadable, match=r"lacks 1 .*layers\.2\.mlp\.up_proj"):
        load(copy)


def test_a_weight_of_another_shape_is_refused(copy: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    edit_tensors(copy / WEIGHTS, lambda weights: weights.update({name: weights[name][:-1].clone()}))
    with pytest.raises(ModelUnreadable):
        load(copy)


# What is not a causal language model of transformers


def test_an_unknown_architecture_is_refused(copy: Path) -> None:
    edit_json(copy / "config.json", model_type="perceptron9000", architectures=["Perceptron9000"])
    with pytest.raises(UnsupportedModel, match="not a known causal language model"):
        load(copy)


def test_an_encoder_decoder_is_refused(copy: Path) -> None:
    edit_json(copy / "config.json", model_type="t5", architectures=["T5ForConditionalGeneration"])
    with pytest.raises(UnsupportedModel, match="not a known causal language model"):
        load(copy)


def test_code_in_the_directory_is_neither_run_nor_offered(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sits at the terminal is not asked either: nothing may read from it but the interface."""
    witness = tmp_path / "witness"
    (copy / "code.py").write_text(f"open({str(witness)!r}, 'w')\n")
    edit_json(
        copy / "config.json",
        model_type="perceptron9000",
        auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    )
    monkeypatch.setattr("builtins.input", lambda prompt="": pytest.fail("asked on the terminal"))
    with pytest.raises((UnsupportedModel, ModelUnreadable)):
        load(copy)
    assert not witness.exists()


@pytest.mark.parametrize(
    ("kind", "max_context"),
    [("dynamic", 1024), ("longrope", 256), ("linear", 1024), ("yarn", 1024), ("llama3", 1024)],
)
def test_a_conversation_ends_where_its_rotary_embedding_would_change(
    kind: str, max_context: int, copy: Path
) -> None:
    """Trap 33: cached keys would be rotated by frequencies that no longer hold.

    Linear embeddings, YaRN and those of Llama 3 never change: the whole context is taken.
    """
    rope = {
        "rope_type": kind,
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    edit_json(copy / "config.json", rope_parameters=rope)
    assert load(copy).max_context == max_context
