"""Dispatch: the native kernels where they were built for this processor, the reference everywhere else."""

from torch import Tensor

from kvchat.engine.kernels.native.tensors import takes_native
from kvchat.engine.kernels.quantized_linear import native, reference
from kvchat.engine.kernels.quantized_linear.weight import Coding, QuantizedWeight, dequantize, quantize

__all__ = ["Coding", "QuantizedWeight", "dequantize", "linear", "quantize"]


def linear(x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
    """Do what the reference does; see there for arguments."""
    if takes_native(x):
        return native.linear(x, weight, bias)
    return reference.linear(x, weight, bias)
