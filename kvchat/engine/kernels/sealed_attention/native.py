"""Attention over quantised and exact blocks by the native kernel: one call for all sequences of a step.

Dimensions: T tokens in the batch, H query heads, H_kv key-value heads, D head size, N blocks, P block size.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import Library, library
from kvchat.engine.kernels.paged_attention import native as paged
from kvchat.engine.kernels.paged_attention.args import AttentionArgs
from kvchat.engine.kernels.sealed_attention.args import SealedPool
from kvchat.engine.kernels.sealed_record import Code, SealedRecord

CODES = (Code.FP8, Code.INT8, Code.INT4, Code.INT2)
"""In the order of the kernel's numbers for them."""


class _Side(ctypes.Structure):
    """The fields of native.cpp's `Side`, in order."""

    _fields_ = [
        ("pool", ctypes.c_void_p),
        *(
            (name, ctypes.c_int64)
            for name in ("n", "h", "code", "token_bytes", "token_group", "channel_group")
        ),
        *((name, ctypes.c_int64) for name in ("num_columns", "scales_at", "minima_at", "factor_at")),
    ]


class _Call(ctypes.Structure):
    """The fields of native.cpp's `SealedCall`, in order."""

    _fields_ = [
        ("attention", paged.AttentionCall),
        ("blocks", ctypes.c_void_p),
        ("keys", _Side),
        ("values", _Side),
    ]


def takes(query: Tensor, pools: tuple[Tensor, Tensor]) -> bool:
    """Whether there is a native kernel for these tensors. Pure."""
    return paged.takes(query, *pools)


def sealed_attention(
    query: Tensor,
    pools: tuple[Tensor, Tensor],
    sealed: SealedPool,
    args: AttentionArgs,
    blocks: Sequence[Tensor],
    native: Library | None = None,
) -> Tensor:
    """Return what the reference returns; see there for arguments.

    Args:
        native: another level of the library than this processor's best.
    """
    native = native or library()
    assert native is not None
    assert all(listed.is_contiguous() for listed in blocks)
    out = query.new_empty(len(query), query.shape[1], pools[1].shape[3])
    attention, _kept = paged.attention_call(query, pools, out, args, native)
    addresses = torch.tensor([listed.data_ptr() for listed in blocks], dtype=torch.int64)
    call = _Call(
        attention,
        addresses.data_ptr(),
        _side(sealed.keys, sealed.key_record),
        _side(sealed.values, sealed.value_record),
    )
    if native.function("sealed_attention")(ctypes.byref(call)):
        raise MemoryError("attention needs more memory than there is")
    return out


def _side(pool: Tensor, record: SealedRecord) -> _Side:
    return _Side(
        pool.data_ptr(),
        *pool.stride()[:2],
        CODES.index(record.code),
        record.token_bytes,
        record.token_group,
        record.channel_group,
        record.scales_shape[1],
        record.scales_at,
        record.minima_at,
        record.factor_at,
    )
