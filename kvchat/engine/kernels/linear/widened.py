"""A linear layer over weights of 16 bits, for processors that have no instructions for products of them.

Libraries emulate those: on an AVX-512 processor without AVX512-BF16, products of bfloat16 run at a third of
the speed of those of float32, and of float16 at a tenth (docs/decisions/processor.md). So parts of the
weight are widened, which is little beside the product of many rows, and sums are exact to float32. A few rows
cost what reading the weight costs: a native kernel widens it as it is read; without one they are left to the
library.

Dimensions: T rows, K inputs, N outputs.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.linear import native, packed

FEW_ROWS = 64
"""Up to so many rows are computed from the weight as it lies."""
FEWEST_ROWS = 2
"""The same where there are no native kernels, by the library."""
_OUTPUTS_AT_ONCE = 2048


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Do what the reference does, with sums in float32; see there for arguments."""
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) <= FEW_ROWS and native.takes(weight):
        return native.linear(rows.float(), weight, bias, x.dtype).view(*x.shape[:-1], len(weight))
    if len(rows) <= FEWEST_ROWS:
        return functional.linear(x, weight, bias)
    wide = rows.float()
    out = x.new_empty(len(rows), len(weight))
    for start in range(0, len(weight), _OUTPUTS_AT_ONCE):
        part = slice(start, start + _OUTPUTS_AT_ONCE)
        added = None if bias is None else bias[part].float()
        out[:, part] = multiply(wide, weight[part].float(), added)
    return out.view(*x.shape[:-1], len(weight))


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Do what the reference does in float32, by the faster library: torch's own is slow on some vendors."""
    return (packed.linear if packed.works(torch.float32) else functional.linear)(x, weight, bias)
