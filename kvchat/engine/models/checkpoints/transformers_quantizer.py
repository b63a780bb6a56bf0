"""Checkpoints with quantized weights, as transformers reads and kvchat writes them.

Such a directory looks like any other: config.json says under `quantization_config` which layers are
quantized and how, and the weight file holds their codes and scales. transformers asks the class registered
here to put the right layers in place before it fills them.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from kvchat.engine.kernels.quantized_linear import Coding
from kvchat.engine.models.checkpoints.prepared import VERSION
from kvchat.engine.models.linear.quantized import empty_linear, replace

METHOD = "kvchat"


def describe(codings: Mapping[str, Coding]) -> dict[str, Any]:
    """Return the `quantization_config` of a checkpoint with these layers quantized."""
    layers = {name: [coding.bits, coding.group, coding.has_minima] for name, coding in codings.items()}
    return {"quant_method": METHOD, "version": VERSION, "layers": layers}


@register_quantization_config(METHOD)
class QuantizedLayers(QuantizationConfigMixin):
    """What `describe` returned.

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
