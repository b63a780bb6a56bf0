"""The selective scan by the native kernel; `reference` has the definition and its dimensions."""

import ctypes

import torch
from torch import Tensor

from kvchat.engine.kernels.linear.native import TYPES
from kvchat.engine.kernels.native.library import Library, existing, fields, library
from kvchat.engine.kernels.state_slots import StateSlots

MOST_SIZE = 256
"""Numbers of a channel's state that the kernel takes."""


class _Call(ctypes.Structure):
    """The fields of tile.h's `Call`, in order."""

    _fields_ = [
        *fields(ctypes.c_void_p, "x dt a b c skip states reads writes out parallel"),
        ("x_strides", ctypes.c_int64 * 2),
        *fields(ctypes.c_int64, "num_threads type num_sequences num_tokens num_heads head_dim num_groups"),
        *fields(ctypes.c_int64, "size decays_each slot_stride key_stride out_stride"),
        ("least_step", ctypes.c_double),
    ]


def takes(x: Tensor) -> bool:
    """Whether the kernel computes rows of this device and dtype. Pure."""
    return library() is not None and x.device.type == "cpu" and x.dtype in TYPES


def selective_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    skip: Tensor | None,
    slots: StateSlots,
    *,
    native: Library | None = None,
) -> Tensor:
    """Do what the reference does. The same tokens give the same bits in one call as in several.

    Effect: writes the states behind the tokens, [H, P, N] each, into their slots.

    Args:
        native: another level of the library than this processor's best.
    """
    num_sequences, num_tokens, num_heads, head_dim = x.shape
    size = b.shape[-1]
    assert size <= MOST_SIZE
    rows = x.flatten(2)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    dt, a, b, c = (one.float().contiguous() for one in (dt, a, b, c))
    skip = None if skip is None else skip.float().contiguous()
    out = torch.empty(num_sequences, num_tokens, num_heads, head_dim)
    native = existing(native)
    call = _Call(
        rows.data_ptr(),
        dt.data_ptr(),
        a.data_ptr(),
        b.data_ptr(),
        c.data_ptr(),
        None if skip is None else skip.data_ptr(),
        slots.states.data_ptr(),
        None if slots.reads is None else slots.reads.data_ptr(),
        slots.writes.data_ptr(),
        out.data_ptr(),
        native.parallel,
        rows.stride()[:2],
        torch.get_num_threads(),
        TYPES[rows.dtype],
        num_sequences,
        num_tokens,
        num_heads,
        head_dim,
        b.shape[2],
        size,
        a.dim() == 2,
        slots.states.stride(0),
        b.shape[2] * size,
        num_heads * head_dim,
    )
    native.function("selective_scan")(ctypes.byref(call))
    return out
