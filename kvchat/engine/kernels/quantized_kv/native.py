"""Keys and values of whole blocks as codes by the native kernel: from pool to pool, without copies between.

Dimensions: N blocks, H_kv key-value heads, P block size, D head size, b bytes of a record.
"""

import ctypes

import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import Library, existing, fields
from kvchat.engine.kernels.native.tensors import TYPES, pointer, takes_native
from kvchat.engine.kernels.quantized_kv.reference import quantize
from kvchat.engine.kernels.quantized_record import Code, QuantizedRecord

_CODES = (Code.FP8, Code.INT8, Code.INT4, Code.INT2)
"""In the order of the kernel's numbers for them."""
LEAST_NUMBERS = 2**17
"""Each further thread gets at least so many numbers."""


class _Call(ctypes.Structure):
    """The fields of native.cpp's `QuantizeCall`, in order."""

    _fields_ = [
        *fields(ctypes.c_void_p, "pool records sources targets failed parallel"),
        *fields(ctypes.c_int64, "num_blocks num_threads pool_type num_heads block_size dim"),
        *fields(ctypes.c_int64, "n h p record_n record_h"),
        *fields(ctypes.c_int64, "code token_bytes token_group channel_group"),
        *fields(ctypes.c_int64, "num_columns scales_at minima_at factor_at num_bytes"),
    ]


def takes(pool: Tensor) -> bool:
    """Whether there is a native kernel for this pool. Pure."""
    return takes_native(pool) and pool.stride(3) == 1 and pool.shape[3] > 0


def layout_of(record: QuantizedRecord) -> tuple[int, ...]:
    """Return what kernels know of a record, in the order of their fields from `code` to `factor_at`."""
    return (
        _CODES.index(record.code),
        record.token_bytes,
        record.token_group,
        record.channel_group,
        record.scales_shape[1],
        record.scales_at,
        record.minima_at,
        record.factor_at,
    )


def quantize_into(
    records: Tensor,
    pool: Tensor,
    blocks: tuple[Tensor, Tensor],
    record: QuantizedRecord,
    native: Library | None = None,
) -> None:
    """Write the records of some blocks of a pool [N, H_kv, P, D] into `records` [N, H_kv, 1, b].

    Args:
        blocks: which blocks [n], and where in `records` they go [n]; int64.
    """
    native = existing(native)
    assert pool.shape[2:] == (record.num_tokens, record.dim)
    assert records.shape[3] == record.num_bytes
    assert records.stride(3) == 1
    sources, targets = (listed.contiguous() for listed in blocks)
    failed = torch.zeros(len(sources), pool.shape[1], dtype=torch.uint8)
    call = _Call(
        *map(pointer, (pool, records, sources, targets, failed)),
        native.parallel,
        len(sources),
        min(torch.get_num_threads(), 1 + len(sources) * pool[0].numel() // LEAST_NUMBERS),
        TYPES[pool.dtype],
        *pool.shape[1:],
        *pool.stride()[:3],
        *records.stride()[:2],
        *layout_of(record),
        record.num_bytes,
    )
    if native.function("quantise_kv")(ctypes.byref(call)):
        raise MemoryError("quantizing needs more memory than there is")
    # A record that is not finite reads as NaN; the reference says what its bytes are.
    for number in failed.any(dim=1).nonzero()[:, 0].tolist():
        records[targets[number], :, 0] = quantize(pool[sources[number]][None], record)[0]
