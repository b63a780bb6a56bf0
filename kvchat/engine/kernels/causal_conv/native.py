"""A short convolution by the native kernel; `reference` has the definition and its dimensions."""

import ctypes

import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import Library, existing, fields
from kvchat.engine.kernels.native.tensors import TYPES, pointer
from kvchat.engine.kernels.triton_support import in_rows

MOST_TAPS = 8
"""Taps, and kept inputs, that the kernel takes."""
LEAST_NUMEL = 2**12
"""A further thread computes for every so many numbers."""


class _Call(ctypes.Structure):
    """The fields of native.cpp's `Call`, in order."""

    _fields_ = [
        *fields(ctypes.c_void_p, "x weight bias past out parallel"),
        ("x_strides", ctypes.c_int64 * 2),
        *fields(ctypes.c_int64, "num_threads type num_sequences num_tokens num_channels"),
        *fields(ctypes.c_int64, "num_taps num_kept is_activated"),
    ]


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    past: Tensor | None = None,
    *,
    is_activated: bool,
    native: Library | None = None,
) -> Tensor:
    """Do what the reference does. Effect: `past`, contiguous and of the dtype of `x`, takes in `x`."""
    num_taps = weight.shape[1]
    assert num_taps <= MOST_TAPS
    assert past is None or (past.is_contiguous() and past.dtype == x.dtype)
    assert past is None or num_taps - 1 <= past.shape[-1] <= MOST_TAPS
    x = in_rows(x)
    weight = weight.to(x.dtype).contiguous()
    bias = None if bias is None else bias.to(x.dtype).contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    native = existing(native)
    call = _Call(
        *map(pointer, (x, weight, bias, past, out)),
        native.parallel,
        x.stride()[:2],
        min(torch.get_num_threads(), 1 + x.numel() // LEAST_NUMEL),
        TYPES[x.dtype],
        *x.shape,
        num_taps,
        0 if past is None else past.shape[-1],
        is_activated,
    )
    native.function("causal_conv")(ctypes.byref(call))
    return out
