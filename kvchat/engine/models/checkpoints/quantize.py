"""Quantize a model's weights once and keep them: from a plain checkpoint to a prepared one."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from kvchat.engine.kernels.quantized_linear import Coding
from kvchat.engine.models.checkpoints.model_directory_check import read_config
from kvchat.engine.models.checkpoints.prepared import (
    QUANTIZED,
    WEIGHTS_FILE,
    MakeRoom,
    PreparedCheckpoints,
    copy_if_there,
    key_of,
)
from kvchat.engine.models.checkpoints.transformers_quantizer import describe
from kvchat.engine.models.fingerprint import Checkpoint
from kvchat.engine.models.latent import projections
from kvchat.engine.models.linear.quantized import output_name, quantize_linears
from kvchat.engine.models.load import LoadedModel
from kvchat.errors import ConfigError, ModelUnreadable, UnsupportedModel

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is made from which checkpoint.

    Args:
        load: loads the plain model, with its weights mapped.
        weights: a name of QUANTIZED.
        dtype: of everything that is not quantized; auto: as the checkpoint says.
        make_room: called before it is written.
    """

    model_dir: Path
    checkpoint: Checkpoint
    load: Callable[[], LoadedModel]
    weights: str
    dtype: str
    make_room: MakeRoom


def quantized_dir(recipe: Recipe, kept: PreparedCheckpoints, report: Report) -> Path:
    """Return the directory of the quantized checkpoint, made now if it is not there.

    Args:
        report: is told in words how far it is.

    Raises:
        ConfigError: the checkpoint is quantized already.
        ModelError: it cannot be loaded, has weights that are not finite, or none that can be quantized.
        StorageError: the result cannot be written.
    """
    config = read_config(recipe.model_dir)
    if "quantization_config" in config:
        raise ConfigError(f"{recipe.model_dir} is quantized already. Use it with --weights auto.")
    key = key_of(recipe.checkpoint, recipe.weights, recipe.dtype)
    return kept.get(key, lambda directory: _make(directory, recipe, config, report))


def _make(directory: Path, recipe: Recipe, config: dict[str, Any], report: Report) -> None:
    module = recipe.load().module
    codings = _quantize(module, recipe, report)
    if not codings:
        raise UnsupportedModel(
            f"{recipe.model_dir} has no linear layers that can be quantized. Use --weights auto."
        )
    recipe.make_room(sum(tensor.nbytes for tensor in _tensors(module).values()))
    report(f"writing {recipe.weights} weights")
    config = config | {"dtype": str(module.dtype).removeprefix("torch.")}
    write_checkpoint(directory, module, config, codings)
    copy_if_there(recipe.model_dir, directory, "generation_config.json")


def _quantize(module: Any, recipe: Recipe, report: Report) -> dict[str, Coding]:
    num_layers = sum(type(layer) is nn.Linear for layer in module.modules())
    codings: dict[str, Coding] = {}
    try:
        with torch.inference_mode():
            for name, coding in quantize_linears(module, QUANTIZED[recipe.weights], projections(module)):
                codings[name] = coding
                share = len(codings) / num_layers
                report(f"preparing {recipe.weights} weights, {share:.0%}; only this once")
    except ValueError as error:
        raise ModelUnreadable(f"{recipe.model_dir} cannot be quantized: {error}.") from error
    return codings


def write_checkpoint(
    directory: Path, module: nn.Module, config: Mapping[str, Any], codings: Mapping[str, Coding]
) -> None:
    """Write a model with quantized layers so that transformers loads it like any other.

    Args:
        config: config.json of the plain model.
        codings: what was quantized, by the name of the layer.
    """
    written = dict(config) | {"quantization_config": describe(codings)}
    if output_name(module) in codings:
        _untie(written)
    (directory / "config.json").write_text(json.dumps(written, indent=1), encoding="utf-8")
    save_file(_tensors(module), directory / WEIGHTS_FILE, {"format": "pt"})


def _untie(config: dict[str, Any]) -> None:
    """Say that the last layer has weights of its own."""
    config["tie_word_embeddings"] = False
    for value in config.values():
        if isinstance(value, dict) and "tie_word_embeddings" in value:
            value["tie_word_embeddings"] = False


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return what is saved, shared tensors under the first of their names."""
    tensors: dict[str, Tensor] = {}
    seen: set[tuple[int, int]] = set()
    for name, tensor in module.state_dict().items():
        place = (tensor.data_ptr(), tensor.nbytes)
        if tensor.nbytes and place in seen:
            continue
        seen.add(place)
        tensors[name] = tensor.contiguous()
    return tensors
