"""A linear layer over quantized weights: the definition.

Dimensions: T tokens, K inputs, N outputs.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.quantized_linear.weight import QuantizedWeight, dequantize

_ROWS_AT_ONCE = 2048


def linear(x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
    """Return `x @ dequantize(weight).T + bias`, computed in the dtype of `x`.

    A part of the weight is dequantized at a time, never all of it.

    Args:
        x: [..., T, K] of a floating dtype.
        bias: [N], or None.

    Returns:
        [..., T, N] in the dtype of `x`.
    """
    starts = range(0, weight.shape[0], _ROWS_AT_ONCE)
    parts = (weight.part(start, start + _ROWS_AT_ONCE) for start in starts)
    out = torch.cat([functional.linear(x, dequantize(part).to(x.dtype)) for part in parts], dim=-1)
    return out if bias is None else out + bias
