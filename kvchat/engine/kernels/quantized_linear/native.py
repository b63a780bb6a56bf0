"""A linear layer over quantized weights by the native kernels.

A few rows are computed from the codes as they lie, each weight read once. So are more where the processor
multiplies whole numbers twice as fast as float32, and no numbers of 16 bits: a row has the same bits with any
number of rows. Elsewhere parts of the weight are expanded, which is little beside the matrix product.
"""

import ctypes

import torch
from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.cpu_dtypes import is_emulated
from kvchat.engine.kernels.linear.widened import multiply
from kvchat.engine.kernels.native.library import Library, existing, fields, library
from kvchat.engine.kernels.native.tensors import TYPES, pointer
from kvchat.engine.kernels.quantized_linear.weight import QuantizedWeight

MOST_ROWS = 16
"""Up to so many rows are computed from the codes."""
_WHOLE_LEVELS = ("avx512",)
"""Levels whose instructions multiply whole numbers of 16 bits, two in a lane."""
_LEAST_GROUP = 32
LEAST_BYTES = 2**17
"""A further thread computes for every so many bytes of codes; less is done before it has begun."""
_OUTPUTS_AT_ONCE = 2048


class _Call(ctypes.Structure):
    """The fields of native.cpp's `Call`, in order."""

    _fields_ = [
        *fields(ctypes.c_void_p, "x codes scales minima bias out parallel"),
        *fields(ctypes.c_int64, "num_threads type bits group num_rows num_inputs num_outputs x_t"),
    ]


def prefers_codes(dtype: torch.dtype, weight: QuantizedWeight, native: Library | None) -> bool:
    """Whether any number of rows of a dtype is computed from the codes. Pure."""
    found = native or library()
    is_whole = found is not None and found.level in _WHOLE_LEVELS
    return is_whole and weight.coding.group >= _LEAST_GROUP and is_emulated(dtype)


def linear(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, native: Library | None = None) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) <= MOST_ROWS or prefers_codes(x.dtype, weight, native):
        out = _from_codes(rows.contiguous(), weight, bias, native)
    else:
        out = _from_parts(rows, weight, bias, native)
    return out.view(*x.shape[:-1], weight.shape[0])


def expand(weight: QuantizedWeight, dtype: torch.dtype, native: Library | None = None) -> Tensor:
    """Return the weight [N, K] in a dtype of TYPES."""
    out = torch.empty(weight.shape, dtype=dtype)
    _run("expand_quantised", _call(out, weight, None, out, 0), native)
    return out


def _from_codes(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, native: Library | None) -> Tensor:
    bias = None if bias is None else bias.to(x.dtype).contiguous()
    out = x.new_empty(len(x), weight.shape[0])
    _run("quantised_linear", _call(x, weight, bias, out, len(x)), native)
    return out


def _from_parts(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, native: Library | None) -> Tensor:
    out = x.new_empty(len(x), weight.shape[0])
    x, product = (x.float(), multiply) if is_emulated(x.dtype) else (x, functional.linear)
    for start in range(0, weight.shape[0], _OUTPUTS_AT_ONCE):
        part = weight.part(start, start + _OUTPUTS_AT_ONCE)
        out[:, start : start + _OUTPUTS_AT_ONCE] = product(x, expand(part, x.dtype, native), None)
    return out if bias is None else out.add_(bias)


def _call(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, out: Tensor, num_rows: int) -> _Call:
    num_outputs, num_inputs = weight.shape
    return _Call(
        *map(pointer, (x, weight.codes, weight.scales, weight.minima, bias, out)),
        None,
        min(torch.get_num_threads(), 1 + weight.nbytes * max(1, num_rows // MOST_ROWS) // LEAST_BYTES),
        TYPES[out.dtype],
        weight.coding.bits,
        weight.coding.group,
        num_rows,
        num_inputs,
        num_outputs,
        x.stride(0),
    )


def _run(name: str, call: _Call, native: Library | None) -> None:
    native = existing(native)
    call.parallel = native.parallel
    if native.function(name)(ctypes.byref(call)):
        raise MemoryError("a linear layer needs more memory than there is")
