"""A short convolution by the native kernel; `reference` has the definition and its dimensions."""

import ctypes

import torch
from torch import Tensor

from kvchat.engine.kernels.linear.native import TYPES
from kvchat.engine.kernels.native.library import Library, existing, fields, library

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


def takes(x: Tensor) -> bool:
    """Whether the kernel computes rows of this device and dtype. Pure."""
    return library() is not None and x.device.type == "cpu" and x.dtype in TYPES


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    past: Tensor | None = None,
    *,
    is_activated: bool,
    native: Library | None = None,
) -> Tensor:
    """Do what the reference does. Effect: `past`, contiguous and of the dtype of `x`, takes in `x`.

    Args:
        native: another level of the library than this processor's best.
    """
    num_sequences, num_tokens, num_channels = x.shape
    num_taps = weight.shape[1]
    assert num_taps <= MOST_TAPS
    assert past is None or (past.is_contiguous() and past.dtype == x.dtype)
    assert past is None or num_taps - 1 <= past.shape[-1] <= MOST_TAPS
    x = x if x.stride(-1) == 1 else x.contiguous()
    weight = weight.to(x.dtype).contiguous()
    bias = None if bias is None else bias.to(x.dtype).contiguous()
    out = torch.empty(num_sequences, num_tokens, num_channels, dtype=x.dtype)
    native = existing(native)
    call = _Call(
        x.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        None if past is None else past.data_ptr(),
        out.data_ptr(),
        native.parallel,
        x.stride()[:2],
        min(torch.get_num_threads(), 1 + x.numel() // LEAST_NUMEL),
        TYPES[x.dtype],
        num_sequences,
        num_tokens,
        num_channels,
        num_taps,
        0 if past is None else past.shape[-1],
        is_activated,
    )
    native.function("causal_conv")(ctypes.byref(call))
    return out
