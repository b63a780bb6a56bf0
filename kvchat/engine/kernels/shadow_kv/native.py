"""Attention to chosen chunks by the native kernel: one call reads what stands for them, chooses, and attends.

Dimensions: N blocks, P block size, Q queries, H query heads, H_kv key-value heads, D head size, c tokens of a
chunk.
"""

import ctypes
from typing import Final

import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import Library, existing, fields
from kvchat.engine.kernels.native.tensors import TYPES, pointer
from kvchat.engine.kernels.paged_attention import native as paged
from kvchat.engine.kernels.paged_attention.args import KVPair
from kvchat.engine.kernels.shadow_kv.args import ChosenChunks, ChunkChoice, Landmarks

MOST_QUERIES: Final = 16
"""More are multiplied faster by torch, and what they choose is copied once for all of them."""
MOST_KEYS: Final = 64
"""Keys of a tile, which has whole chunks."""
_NO_MEMORY, _NOT_FINITE = 1, 2


class _Call(ctypes.Structure):
    """The fields of choice.h's `ChoiceCall`, in order."""

    _fields_ = [
        *fields(ctypes.c_void_p, "query k_pool v_pool out blocks pieces always before chosen parallel"),
        *fields(ctypes.c_int64, "num_pieces num_threads query_type pool_type"),
        *fields(ctypes.c_int64, "num_queries num_heads num_kv_heads dim_k dim_v block_size"),
        *fields(ctypes.c_int64, "query_t query_h k_n k_h k_p v_n v_h v_p out_t out_h"),
        *fields(ctypes.c_int64, "chunk_size num_compressed num_tokens"),
        *fields(ctypes.c_int64, "num_always num_before num_chosen num_new"),
        ("scale", ctypes.c_float),
    ]


def takes(query: Tensor, pools: KVPair, choice: ChunkChoice) -> bool:
    """Whether there is a native kernel for these. Pure."""
    return (
        len(query) <= MOST_QUERIES
        and MOST_KEYS % choice.chunk_size == 0
        and pools.keys.shape[2] % choice.chunk_size == 0
        and pools.keys.dtype == pools.values.dtype
        and all(_is_readable(stand, pools.keys.dtype) for stand in choice.stands)
        and paged.takes(query, *pools)
    )


def _is_readable(stand: Landmarks, dtype: torch.dtype) -> bool:
    if stand.scales is None:
        return stand.rows.dtype == dtype and stand.rows.is_contiguous()
    return stand.rows.dtype == torch.int8 and stand.rows.is_contiguous() and stand.scales.is_contiguous()


def chosen_attention(
    query: Tensor, pools: KVPair, choice: ChunkChoice, native: Library | None = None
) -> ChosenChunks | None:
    """Return what the reference returns, None where a product is not finite; see there for arguments."""
    native = existing(native)
    call, seen, _kept = _call_of(query, pools, choice, native)
    found = native.function("chosen_attention")(ctypes.byref(call))
    if found == _NO_MEMORY:
        raise MemoryError("attention needs more memory than there is")
    if found == _NOT_FINITE:
        return None
    return ChosenChunks(out=seen[0], chosen=seen[1], num_new=call.num_new)


def _call_of(
    query: Tensor, pools: KVPair, choice: ChunkChoice, native: Library
) -> tuple[_Call, tuple[Tensor, Tensor], tuple[object, ...]]:
    """Return the call, the tensors it writes, and what must live as long as it beside those it is given."""
    k_pool, v_pool = pools
    num_queries, num_heads, dim_k = query.shape
    num_kv_heads, block_size, dim_v = v_pool.shape[1:]
    num_always, num_compressed = choice.always.shape[1], choice.num_compressed
    assert choice.num_chosen <= num_compressed - num_always
    assert choice.num_tokens - num_queries >= num_compressed * choice.chunk_size
    always, blocks = choice.always.contiguous(), choice.blocks.contiguous()
    before = None if choice.before is None else choice.before.contiguous()
    pieces = _table(choice.stands)
    out = query.new_empty(num_queries, num_heads, dim_v)
    chosen = always.new_empty(num_kv_heads, choice.num_chosen)
    call = _Call(
        *map(pointer, (query, k_pool, v_pool, out, blocks, pieces, always, before, chosen)),
        native.parallel,
        len(pieces),
        _num_threads(choice, k_pool, v_pool),
        TYPES[query.dtype],
        TYPES[k_pool.dtype],
        num_queries,
        num_heads,
        num_kv_heads,
        dim_k,
        dim_v,
        block_size,
        *query.stride()[:2],
        *k_pool.stride()[:3],
        *v_pool.stride()[:3],
        *out.stride()[:2],
        choice.chunk_size,
        num_compressed,
        choice.num_tokens,
        num_always,
        0 if before is None else before.shape[1],
        choice.num_chosen,
        0,
        choice.softmax_scale,
    )
    return call, (out, chosen), (always, before, blocks, pieces)


def _table(stands: tuple[Landmarks, ...]) -> Tensor:
    """Return addresses of rows and scales, first chunk, chunks and keys of a chunk of each, int64."""
    rows, first = [], 0
    for stand in stands:
        scales = 0 if stand.scales is None else stand.scales.data_ptr()
        rows.append((stand.rows.data_ptr(), scales, first, stand.num_chunks, stand.num_keys))
        first += stand.num_chunks
    return torch.tensor(rows, dtype=torch.int64)


def _num_threads(choice: ChunkChoice, k_pool: Tensor, v_pool: Tensor) -> int:
    """Return how many threads are worth their beginning for what is read."""
    tail_len = choice.num_tokens - choice.num_compressed * choice.chunk_size
    num_seen = (choice.always.shape[1] + choice.num_chosen) * choice.chunk_size + tail_len
    token_bytes = (k_pool[0, :, 0].numel() + v_pool[0, :, 0].numel()) * k_pool.element_size()
    num_bytes = sum(stand.num_bytes for stand in choice.stands) + num_seen * token_bytes
    return min(torch.get_num_threads(), 1 + num_bytes // paged.LEAST_BYTES)
