"""Paged attention by the native kernel: one call for all sequences of a step.

Dimensions: T tokens in the batch, B sequences, H query heads, H_kv key-value heads, D head size, N blocks, P
block size.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import Library, existing, fields
from kvchat.engine.kernels.native.tensors import TYPES, pointer, takes_native
from kvchat.engine.kernels.paged_attention.args import (
    AttentionArgs,
    KVPair,
    SequenceSpan,
    SpanTable,
    attended,
)

LEAST_BYTES = 2**18
"""A further thread computes for every so many bytes of keys and values; less is done before it has begun."""


class NativeCall(ctypes.Structure):
    """The fields of call.h's `NativeCall`, in order."""

    _fields_ = [
        *fields(ctypes.c_void_p, "query k_pool v_pool out sinks spans parallel"),
        *fields(ctypes.c_int64, "num_spans num_threads query_type pool_type"),
        *fields(ctypes.c_int64, "num_heads num_kv_heads dim_k dim_v block_size"),
        *fields(ctypes.c_int64, "query_t query_h k_n k_h k_p v_n v_h v_p"),
        *fields(ctypes.c_int64, "out_t out_h window chunk"),
        *fields(ctypes.c_float, "scale softcap"),
    ]


def takes(query: Tensor, k_pool: Tensor, v_pool: Tensor) -> bool:
    """Whether there is a native kernel for these tensors. Pure."""
    return (
        takes_native(query)
        and takes_native(k_pool)
        and query.stride(2) == k_pool.stride(3) == v_pool.stride(3) == 1
    )


def span_table(spans: Sequence[SequenceSpan]) -> SpanTable:
    """Return the spans of a step, which must live as long as this does: it points at their blocks."""
    spans = attended(spans)
    assert all(span.blocks.is_contiguous() for span in spans)
    rows = [
        (span.q_start, span.q_end - span.q_start, span.position, span.first_block, span.blocks.data_ptr())
        for span in spans
    ]
    num_keys = sum(row[2] + row[1] for row in rows)
    return SpanTable(torch.tensor(rows, dtype=torch.int64).reshape(-1, 5), num_keys)


def paged_attention(
    query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs, native: Library | None = None
) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    native = existing(native)
    out = query.new_empty(len(query), query.shape[1], v_pool.shape[3])
    call, _kept = attention_call(query, KVPair(k_pool, v_pool), out, args, native)
    if native.function("paged_attention")(ctypes.byref(call)):
        raise MemoryError("attention needs more memory than there is")
    return out


def attention_call(
    query: Tensor, pools: KVPair, out: Tensor, args: AttentionArgs, native: Library
) -> tuple[NativeCall, tuple[object, ...]]:
    """Return the call that computes into `out`, and what must live as long as it, beside its tensors."""
    k_pool, v_pool = pools
    table = args.prepared if isinstance(args.prepared, SpanTable) else span_table(args.spans)
    _, num_heads, dim_k = query.shape
    num_kv_heads, block_size, dim_v = v_pool.shape[1:]
    sinks = None if args.sinks is None else args.sinks.float().contiguous()
    num_bytes = table.num_keys * num_kv_heads * (dim_k + dim_v) * k_pool.element_size()
    call = NativeCall(
        *map(pointer, (query, k_pool, v_pool, out, sinks, table.rows)),
        native.parallel,
        len(table.rows),
        min(torch.get_num_threads(), 1 + num_bytes // LEAST_BYTES),
        TYPES[query.dtype],
        TYPES[k_pool.dtype],
        num_heads,
        num_kv_heads,
        dim_k,
        dim_v,
        block_size,
        *query.stride()[:2],
        *k_pool.stride()[:3],
        *v_pool.stride()[:3],
        *out.stride()[:2],
        args.window or 0,
        args.chunk or 0,
        args.softmax_scale,
        args.softcap or 0.0,
    )
    return call, (sinks, table)
