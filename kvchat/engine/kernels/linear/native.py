"""Products of rows with a weight of 16 bits, which the native kernels widen as they read it.

Dimensions: T rows, K inputs, N outputs.
"""

import ctypes

import torch
from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.linear.widened_layout import BLOCK, InterleavedWeight
from kvchat.engine.kernels.native.library import Library, existing, fields
from kvchat.engine.kernels.native.tensors import TYPES, pointer, takes_native

LEAST_BYTES = 2**17
"""A further thread computes for every so many bytes of a weight; less is done before it has begun."""
ROWS_AT_ONCE = 8
"""Rows for which a weight is read once."""
_ROWS, _COLUMNS = 0, 1


class _Call(ctypes.Structure):
    """The fields of native.cpp's `Call`, in order."""

    _fields_ = [
        *fields(ctypes.c_void_p, "x weight bias out parallel"),
        *fields(ctypes.c_int64, "num_threads layout type bias_type out_type block padded"),
        *fields(ctypes.c_int64, "num_rows num_inputs x_stride num_outputs"),
    ]


class _Pairing(ctypes.Structure):
    """The fields of native.cpp's `Pairing`, in order."""

    _fields_ = [
        *fields(ctypes.c_void_p, "from_ to parallel"),
        *fields(ctypes.c_int64, "num_threads num_inputs num_outputs padded"),
    ]


def takes(weight: Tensor) -> bool:
    """Whether there is a native kernel for this weight. Pure."""
    is_plain = weight.layout == torch.strided and weight.is_contiguous()
    return is_plain and weight.dtype != torch.float32 and takes_native(weight)


def linear(
    x: Tensor,
    weight: Tensor | InterleavedWeight,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    native: Library | None = None,
) -> Tensor:
    """Return `x @ weight.T + bias`, summed in float32.

    A row's numbers depend neither on the rows beside it nor on the number of threads.

    Args:
        x: float32 [T, K].
        weight: [N, K], paired or one that `takes`.
        bias: [N], or None.
        dtype: of the result.

    Returns:
        [T, N].
    """
    num_outputs, num_inputs = weight.shape
    numbers = weight.numbers if isinstance(weight, InterleavedWeight) else weight
    x = x.contiguous()
    if isinstance(weight, InterleavedWeight) and num_inputs % 2:
        x = functional.pad(x, (0, 1))
    out = x.new_empty(len(x), num_outputs, dtype=dtype)
    native = existing(native)
    call = _Call(
        *map(pointer, (x, numbers, bias, out)),
        native.parallel,
        _num_threads(numbers, max(1, len(x) // ROWS_AT_ONCE)),
        _COLUMNS if isinstance(weight, InterleavedWeight) else _ROWS,
        TYPES[numbers.dtype],
        0 if bias is None else TYPES[bias.dtype],
        TYPES[dtype],
        BLOCK,
        num_inputs + num_inputs % 2,
        len(x),
        num_inputs,
        x.shape[1],
        num_outputs,
    )
    native.function("multiply_rows")(ctypes.byref(call))
    return out


def pair(weight: Tensor, native: Library | None = None) -> InterleavedWeight:
    """Do what `paired_weight.pair` does, which see."""
    num_outputs, num_inputs = weight.shape
    weight = weight.contiguous()
    numbers = weight.new_empty(-(-num_outputs // BLOCK), -(-num_inputs // 2), BLOCK, 2)
    native = existing(native)
    pairing = _Pairing(
        weight.data_ptr(),
        numbers.data_ptr(),
        native.parallel,
        _num_threads(weight),
        num_inputs,
        num_outputs,
        num_inputs + num_inputs % 2,
    )
    native.function("pair_inputs")(ctypes.byref(pairing))
    return InterleavedWeight(numbers=numbers, shape=weight.shape)


def _num_threads(weight: Tensor, num_times: int = 1) -> int:
    """Return how many threads a weight is worth that is read so many times."""
    return min(torch.get_num_threads(), 1 + num_times * weight.nbytes // LEAST_BYTES)
