"""A model's linear layers with quantized weights."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from kvchat.engine.kernels.quantized_linear import Coding, QuantizedWeight, linear, quantize
from kvchat.engine.models.latent import projections

LEAST_SIDE = 64
"""Layers with fewer inputs or outputs, such as routers between experts, weigh little and decide much."""
_OUTPUT_BITS = 8
"""Of the layer that computes the logits, however few the others have."""


class QuantizedLinear(nn.Module):
    """Stands in for `nn.Linear`."""

    codes: Tensor
    scales: Tensor
    minima: Tensor | None

    def __init__(self, weight: QuantizedWeight, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.coding = weight.coding
        self.out_features, self.in_features = weight.shape
        self.register_buffer("codes", weight.codes)
        self.register_buffer("scales", weight.scales)
        self.register_buffer("minima", weight.minima)
        self.bias = bias

    @property
    def quantized(self) -> QuantizedWeight:
        return QuantizedWeight(coding=self.coding, codes=self.codes, scales=self.scales, minima=self.minima)

    def forward(self, x: Tensor) -> Tensor:
        """[..., T, K] → [..., T, N]."""
        return linear(x, self.quantized, self.bias)


def quantize_linears(model: nn.Module, bits: int) -> Iterator[tuple[str, Coding]]:
    """Replace every large linear layer by one with quantized weights; yield the name and coding of each.

    An embedding that shares the weights of the last layer keeps its own, and layers stay whose weights latent
    attention reads.

    Raises: ValueError: a weight is not finite.
    """
    output, spared = output_name(model), projections(model)
    for name, layer in list(model.named_modules()):
        if type(layer) is not nn.Linear or layer in spared or not _can_quantize(layer):
            continue
        weight = quantize(layer.weight.detach(), _OUTPUT_BITS if name == output else bits)
        replace(model, name, QuantizedLinear(weight, layer.bias))
        yield name, weight.coding


def output_name(model: Any) -> str | None:
    """Return the name of the layer that computes the logits, None if a model does not say."""
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return next((name for name, layer in model.named_modules() if layer is output), None) if output else None


def empty_linear(layer: nn.Linear, coding: Coding) -> QuantizedLinear:
    """Return a layer of the same size whose tensors are still to be filled, on the device of `layer`."""
    num_outputs, num_inputs = layer.weight.shape
    device = layer.weight.device
    groups = (num_outputs, num_inputs // coding.group)
    is_whole = coding.bits == 8
    weight = QuantizedWeight(
        coding=coding,
        codes=torch.empty(
            num_outputs,
            num_inputs if is_whole else num_inputs // 2,
            dtype=torch.int8 if is_whole else torch.uint8,
            device=device,
        ),
        scales=torch.empty(groups, dtype=torch.float16, device=device),
        minima=torch.empty(groups, dtype=torch.float16, device=device) if coding.has_minima else None,
    )
    return QuantizedLinear(weight, layer.bias)


def replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Put a layer in the place of the one called `name`."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)


def _can_quantize(layer: nn.Linear) -> bool:
    num_outputs, num_inputs = layer.weight.shape
    return num_inputs % Coding(bits=8).group == 0 and min(num_outputs, num_inputs) >= LEAST_SIDE
