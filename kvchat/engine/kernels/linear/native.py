"""Products of a few rows with a plain weight of 16 bits, which the native kernels widen as they read it.

Dimensions: T rows, K inputs, N outputs.
"""

import ctypes

import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import Library, library

TYPES = {torch.bfloat16: 1, torch.float16: 2}
"""Dtypes of weights, by the kernel's numbers."""
LEAST_BYTES = 2**17
"""A further thread computes for every so many bytes of a weight; less is done before it has begun."""


class _Call(ctypes.Structure):
    """The fields of native.cpp's `Call`, in order."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "weight", "out", "parallel")),
        *(
            (name, ctypes.c_int64)
            for name in ("num_threads", "type", "num_rows", "num_inputs", "num_outputs")
        ),
    ]


def takes(weight: Tensor) -> bool:
    """Whether there is a native kernel for this weight. Pure."""
    is_plain = weight.device.type == "cpu" and weight.layout == torch.strided and weight.is_contiguous()
    return is_plain and weight.dtype in TYPES and library() is not None


def linear(x: Tensor, weight: Tensor, native: Library | None = None) -> Tensor:
    """Return `x @ weight.T`, summed in float32.

    A row's numbers depend neither on the rows beside it nor on the number of threads.

    Args:
        x: float32 [T, K].
        weight: one that `takes`, [N, K].
        native: another level of the library than this processor's best.

    Returns:
        float32 [T, N].
    """
    x, out = x.contiguous(), x.new_empty(len(x), len(weight))
    native = native or library()
    assert native is not None
    call = _Call(
        x.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        native.parallel,
        min(torch.get_num_threads(), 1 + weight.nbytes // LEAST_BYTES),
        TYPES[weight.dtype],
        len(x),
        x.shape[1],
        len(weight),
    )
    native.function("few_rows")(ctypes.byref(call))
    return out
