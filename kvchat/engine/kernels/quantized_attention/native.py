"""Attention over quantized and exact blocks by the native kernel: one call for all sequences of a step.

Dimensions: T tokens in the batch, H query heads, H_kv key-value heads, D head size, N blocks, P block size.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import Library, existing, fields
from kvchat.engine.kernels.paged_attention import native as paged
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool
from kvchat.engine.kernels.quantized_kv.native import layout_of
from kvchat.engine.kernels.quantized_record import QuantizedRecord


class RecordSide(ctypes.Structure):
    """The fields of quantized_tile.h's `RecordSide`, in order."""

    _fields_ = [
        ("pool", ctypes.c_void_p),
        *fields(ctypes.c_int64, "n h code token_bytes token_group channel_group"),
        *fields(ctypes.c_int64, "num_columns scales_at minima_at factor_at"),
    ]


class _Call(ctypes.Structure):
    """The fields of quantized_tile.h's `QuantizedCall`, in order."""

    _fields_ = [
        ("attention", paged.NativeCall),
        ("blocks", ctypes.c_void_p),
        *fields(RecordSide, "keys values"),
    ]


def quantized_attention(
    query: Tensor,
    pools: KVPair,
    quantized: QuantizedPool,
    args: AttentionArgs,
    blocks: Sequence[Tensor],
    native: Library | None = None,
) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    native = existing(native)
    out = query.new_empty(len(query), query.shape[1], pools.values.shape[3])
    attention, _kept = paged.attention_call(query, pools, out, args, native)
    addresses = addresses_of(blocks)
    call = _Call(
        attention,
        addresses.data_ptr(),
        side_of(quantized.keys, quantized.key_record),
        side_of(quantized.values, quantized.value_record),
    )
    if native.function("quantized_attention")(ctypes.byref(call)):
        raise MemoryError("attention needs more memory than there is")
    return out


def addresses_of(blocks: Sequence[Tensor]) -> Tensor:
    """Return where the quantized blocks of each span are listed [B], int64; the lists must live as long."""
    assert all(listed.is_contiguous() for listed in blocks)
    return torch.tensor([listed.data_ptr() for listed in blocks], dtype=torch.int64)


def side_of(pool: Tensor, record: QuantizedRecord) -> RecordSide:
    """Return the keys, or the values, of a layer's quantized blocks as kernels read them."""
    return RecordSide(pool.data_ptr(), *pool.stride()[:2], *layout_of(record))
