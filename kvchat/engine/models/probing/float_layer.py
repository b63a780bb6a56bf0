"""A decoder layer in float32, to be held to a definition more closely than its own type allows."""

from copy import deepcopy
from typing import Any

from torch import nn

from kvchat.engine.kernels.decoder_layers.reference import dense
from kvchat.engine.models.hook import AttentionLayer, attach
from kvchat.engine.models.linear.packed import PackedLinear
from kvchat.engine.models.linear.paired import PairedLinear
from kvchat.engine.models.linear.quantized import QuantizedLinear
from kvchat.engine.models.linear.widened import WidenedLinear
from kvchat.engine.models.probing.decoder_structure import match_linear


def float_copy(layer: nn.Module, behind: AttentionLayer) -> nn.Module:
    """Return a copy of a layer with plain weights in float32 and `behind` at its attention."""
    linears = (nn.Linear, PackedLinear, PairedLinear, WidenedLinear, QuantizedLinear)
    known: dict[int, Any] = {
        id(part): _float_linear(part) for part in layer.modules() if isinstance(part, linears)
    }
    for part in layer.modules():
        # What belongs to the whole model is shared.
        known |= {
            id(value): value for name, value in vars(part).items() if name.startswith(("config", "kvchat"))
        }
    copy = deepcopy(layer, known).float()
    attach(copy, behind)
    return copy


def _float_linear(layer: nn.Module) -> nn.Linear:
    matched = match_linear(layer)
    weight, bias = dense(matched.weight), matched.bias
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    plain.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        plain.bias = nn.Parameter(bias.detach().float(), requires_grad=False)
    return plain
