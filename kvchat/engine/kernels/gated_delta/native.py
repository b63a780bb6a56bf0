"""The gated delta rule by the native kernel; `reference` has the definition and its dimensions."""

import ctypes

import torch
from torch import Tensor

from kvchat.engine.kernels.gated_delta.reference import EPSILON
from kvchat.engine.kernels.native.library import Library, existing, fields
from kvchat.engine.kernels.native.tensors import TYPES, pointer
from kvchat.engine.kernels.state_slots import StateSlots
from kvchat.engine.kernels.triton_support import in_rows

MOST_DIM = 256
"""Numbers of a key that the kernel takes."""


class _Call(ctypes.Structure):
    """The fields of tile.h's `Call`, in order."""

    _fields_ = [
        *fields(ctypes.c_void_p, "query key value decay beta states reads writes out parallel"),
        *fields(ctypes.c_int64 * 3, "query_strides key_strides value_strides"),
        *fields(ctypes.c_int64, "num_threads type num_sequences num_tokens"),
        *fields(ctypes.c_int64, "num_key_heads num_heads key_dim value_dim decays_each is_normal"),
        *fields(ctypes.c_int64, "slot_stride out_stride"),
        ("epsilon", ctypes.c_double),
    ]


def gated_delta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    slots: StateSlots,
    *,
    is_normal: bool,
    native: Library | None = None,
) -> Tensor:
    """Do what the reference does. The same tokens give the same bits in one call as in several.

    Effect: writes the states behind the tokens, [H, K, V] each, into their slots.
    """
    num_sequences, num_tokens, num_heads, value_dim = value.shape
    key_dim = key.shape[-1]
    assert key_dim <= MOST_DIM
    query, key, value = (in_rows(one.to(query.dtype)) for one in (query, key, value))
    decay, beta = decay.float().contiguous(), beta.float().contiguous()
    out = query.new_empty(num_sequences, num_tokens, num_heads, value_dim)
    native = existing(native)
    call = _Call(
        *map(pointer, (query, key, value, decay, beta, slots.states, slots.reads, slots.writes, out)),
        native.parallel,
        query.stride()[:3],
        key.stride()[:3],
        value.stride()[:3],
        torch.get_num_threads(),
        TYPES[query.dtype],
        num_sequences,
        num_tokens,
        key.shape[2],
        num_heads,
        key_dim,
        value_dim,
        decay.dim() == 4,
        is_normal,
        slots.states.stride(0),
        num_heads * value_dim,
        EPSILON,
    )
    native.function("gated_delta")(ctypes.byref(call))
    return out
