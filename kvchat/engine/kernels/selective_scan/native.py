"""The selective scan by the native kernel; `reference` has the definition and its dimensions."""

import ctypes

import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import Library, existing, fields
from kvchat.engine.kernels.native.tensors import TYPES, pointer
from kvchat.engine.kernels.state_slots import StateSlots
from kvchat.engine.kernels.triton_support import in_rows

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
    """
    size = b.shape[-1]
    assert size <= MOST_SIZE
    rows = in_rows(x.flatten(2))
    dt, a, b, c = (one.float().contiguous() for one in (dt, a, b, c))
    skip = None if skip is None else skip.float().contiguous()
    out = torch.empty(x.shape)
    native = existing(native)
    call = _Call(
        *map(pointer, (rows, dt, a, b, c, skip, slots.states, slots.reads, slots.writes, out)),
        native.parallel,
        rows.stride()[:2],
        torch.get_num_threads(),
        TYPES[rows.dtype],
        *x.shape,
        b.shape[2],
        size,
        a.dim() == 2,
        slots.states.stride(0),
        b.shape[2] * size,
        out.stride(1),
    )
    native.function("selective_scan")(ctypes.byref(call))
    return out
