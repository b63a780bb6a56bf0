"""Checkpoints with quantized weights: made once from plain ones, and read by transformers.

Such a directory looks like any other: config.json says under `quantization_config` which layers are
quantized and how, and the weight file holds their codes and scales. transformers asks the class registered
here to put the right layers in place before it fills them.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from kvchat.engine.kernels.quantized_linear import Coding
from kvchat.engine.models.checkpoints.model_directory_check import read_config
from kvchat.engine.models.checkpoints.prepared import (
    QUANTIZED,
    VERSION,
    WEIGHTS_FILE,
    MakeRoom,
    copy_if_there,
)
from kvchat.engine.models.linear.quantized import empty_linear, output_name, quantize_linears, replace
from kvchat.errors import ModelUnreadable, UnsupportedModel

METHOD = "kvchat"

Report = Callable[[str], None]


def write_quantized(
    module: Any, model_dir: Path, directory: Path, weights: str, report: Report, make_room: MakeRoom
) -> None:
    """Quantize a plain model, and write it so that transformers loads it like any other.

    Args:
        module: as loaded from `model_dir`; worthless afterwards.
        weights: a name of QUANTIZED.
        report: is told in words how far it is.
        make_room: called before it is written.

    Raises:
        ModelError: it has weights that are not finite, or none that can be quantized.
    """
    num_layers = sum(type(layer) is nn.Linear for layer in module.modules())
    codings: dict[str, Coding] = {}
    try:
        with torch.inference_mode():
            for name, coding in quantize_linears(module, QUANTIZED[weights]):
                codings[name] = coding
                report(f"preparing {weights} weights, {len(codings) / num_layers:.0%}; only this once")
    except ValueError as error:
        raise ModelUnreadable(f"{model_dir} cannot be quantized: {error}.") from error
    if not codings:
        raise UnsupportedModel(f"{model_dir} has no linear layers that can be quantized. Use --weights auto.")
    tensors = _tensors(module)
    make_room(sum(tensor.nbytes for tensor in tensors.values()))
    report(f"writing {weights} weights")
    config = read_config(model_dir) | {"dtype": str(module.dtype).removeprefix("torch.")}
    if output_name(module) in codings:
        _untie(config)
    write_checkpoint(directory, tensors, config, codings)
    copy_if_there(model_dir, directory, "generation_config.json")


def write_checkpoint(
    directory: Path, tensors: dict[str, Tensor], config: Mapping[str, Any], codings: Mapping[str, Coding]
) -> None:
    """Write weights and config.json of a model.

    Args:
        codings: what is quantized, by the name of the layer; nothing may be.
    """
    save_file(tensors, directory / WEIGHTS_FILE, {"format": "pt"})
    written = dict(config)
    if codings:
        layers = {name: [coding.bits, coding.group, coding.has_minima] for name, coding in codings.items()}
        written["quantization_config"] = {"quant_method": METHOD, "version": VERSION, "layers": layers}
    (directory / "config.json").write_text(json.dumps(written, indent=1), encoding="utf-8")


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


@register_quantization_config(METHOD)
class QuantizedLayers(QuantizationConfigMixin):
    """The `quantization_config` that `write_checkpoint` writes.

    Raises: ValueError: it was written by another version, or names no codings.
    """

    def __init__(self, layers: Mapping[str, Any], version: int = VERSION, **others: object) -> None:
        if version != VERSION:
            raise ValueError(f"its quantized weights are of version {version}, this is version {VERSION}")
        self.quant_method = METHOD
        self.version = version
        self.layers = dict(layers)

    @property
    def codings(self) -> dict[str, Coding]:
        return {
            name: Coding(bits=bits, group=group, has_minima=has_minima)
            for name, (bits, group, has_minima) in self.layers.items()
        }


@register_quantizer(METHOD)
class Quantizer(HfQuantizer):
    """Puts quantized layers in place of plain ones before weights are read."""

    requires_calibration = False
    quantization_config: QuantizedLayers

    def _process_model_before_weight_loading(self, model: nn.Module, **others: object) -> None:
        for name, coding in self.quantization_config.codings.items():
            layer = model.get_submodule(name)
            if not isinstance(layer, nn.Linear) or layer.in_features % coding.group:
                raise ValueError(f"its config.json says that {name} is quantized, which it cannot be")
            replace(model, name, empty_linear(layer, coding))

    def is_serializable(self, **others: object) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False
