"""Attention over quantized and exact blocks in Triton: codes become numbers where they are used.

As attention over exact blocks: a program takes a tile of queries, all query heads of one key-value head, and
single queries split their keys by their own length. It walks over the quantized keys of its part first, then
over the exact ones; the scale of an 8-bit token counts with its scores and weights instead of its numbers.
Dimensions: T tokens in the batch, H query heads, H_kv key-value heads, G = H / H_kv, D head size, N blocks, P
block size, B sequences, n quantized blocks of a table, S parts, M tiles.
"""

import triton
import triton.language as tl
from torch import Tensor

from kvchat.engine.kernels.attention_tiles.triton import load_queries, rows_of, take_blocks, tile_of
from kvchat.engine.kernels.online_softmax.triton import (
    begin,
    count_parts,
    keys_of_part,
    scores_of,
    store_result,
    take_in,
)
from kvchat.engine.kernels.paged_attention import triton_launcher
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair
from kvchat.engine.kernels.paged_attention.step_tables import tables_of
from kvchat.engine.kernels.paged_attention.triton_launcher import LaunchTarget
from kvchat.engine.kernels.quantized_attention import triton_dequantize as packed
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool, QuantizedStep
from kvchat.engine.kernels.quantized_attention.triton_dequantize import products_with_keys, weighted_values
from kvchat.engine.kernels.triton_support import HALF, MOST_REGISTERS, Tiling, in_rows

PART_LEN = 512
"""A query that stands alone gets a further program for every so many keys."""
MOST_PARTS = 64
WIDE_PIECE = tl.constexpr(32)
"""Of float32 keys so many numbers are multiplied at a time: more of them do not stay in registers."""


def decode_tiling(group: int, head_dim: int, element_size: int) -> Tiling:
    """Return the tiles for single queries whose `group` heads share keys."""
    rows = max(16, triton.next_power_of_2(group))
    if element_size > HALF:
        return _wide_tiling(rows)
    # Left alone, the compiler spills in heads of other sizes to let more programs run at a time.
    max_registers = None if head_dim in (64, 128) else MOST_REGISTERS
    # A second stage, in which codes wait in shared memory, costs up to two thirds of the speed on an H200.
    return Tiling(
        block_m=rows, block_n=32, num_warps=8 if rows > 32 else 4, num_stages=1, max_registers=max_registers
    )


def prefill_tiling(group: int, head_dim: int, element_size: int) -> Tiling:
    """Return the tiles for prompts."""
    rows = max(16, triton.next_power_of_2(group))
    if element_size > HALF:
        return _wide_tiling(rows)
    # More of 4 and 2 bits spills: its numbers are made from codes, scales and minima in registers.
    rows = max(32 if head_dim > 128 else 64, rows)
    num_stages = 3 if head_dim <= 64 and rows <= 64 else 1  # with two int8 spills 8 bytes on sm_100
    return Tiling(block_m=rows, block_n=32, num_warps=8, num_stages=num_stages)


def _wide_tiling(rows: int) -> Tiling:
    """Return the tiles for float32."""
    # The compiler itself would spill a few bytes to let more programs run at a time.
    return Tiling(block_m=rows, block_n=16, num_warps=8, num_stages=1, max_registers=MOST_REGISTERS)


def quantized_attention(
    query: Tensor, pools: KVPair, quantized: QuantizedPool, args: AttentionArgs, step: QuantizedStep
) -> Tensor:
    """Return what the reference returns; see there for arguments.

    Args:
        step: with the quantized blocks of each sequence, listed or as tables.
    """
    tables = tables_of(args)
    old, query = step.padded(), in_rows(query)
    num_kv_heads, block_size, dim_v = pools.values.shape[1:]
    out = triton_launcher.empty_result(query, dim_v, args)
    group = query.shape[1] // num_kv_heads
    # What lies in front of the exact blocks is not counted there.
    most_visible = old.shape[1] * block_size + tables.most_visible
    most_parts = max(1, min(MOST_PARTS, -(-most_visible // PART_LEN)))
    words = [
        stride // packed.WORD_BYTES
        for part in (quantized.keys, quantized.values)
        for stride in part.stride()[:2]
    ]

    def launch(tiles: Tensor, tiling: Tiling, target: LaunchTarget) -> None:
        _attend[(tiles.shape[0], num_kv_heads, target.most_parts)](
            query,
            *pools,
            *packed.views(quantized.keys, quantized.key_record),
            *packed.views(quantized.values, quantized.value_record),
            *target.tensors(),
            tiles,
            *triton_launcher.sequences(tables),
            old,
            *triton_launcher.scores(query, args),
            target.most_parts,
            tables.tables.stride(0),
            old.stride(0),
            *query.stride()[:2],
            *pools.keys.stride()[:3],
            *pools.values.stride()[:3],
            *words,
            **constants(args, group, quantized, target.is_split),
            **triton_launcher.options(tiling),
        )

    sizes = group, max(pools.keys.shape[3], dim_v), query.element_size()
    decode, prefill = decode_tiling(*sizes), prefill_tiling(*sizes)
    triton_launcher.attend(out, tables, (group, most_parts), decode, prefill, launch)
    return out


def constants(
    args: AttentionArgs, group: int, quantized: QuantizedPool, is_split: bool
) -> dict[str, int | bool]:
    """Return what the kernel is compiled for besides dtypes and tiles."""
    keys, values = quantized.key_record, quantized.value_record
    return {
        **triton_launcher.constants(args, group, keys.num_tokens, (keys.dim, values.dim), is_split),
        **packed.constants("K", keys),
        **packed.constants("V", values),
        "PART_LEN": PART_LEN,
        "MOST_PARTS": MOST_PARTS,
    }


@triton.jit
def _num_old(position, BLOCK_SIZE: tl.constexpr):
    """Return how many keys a query at a position reads quantized: all but those of its block and of the one
    before.
    """
    return tl.maximum(position // BLOCK_SIZE - 1, 0) * BLOCK_SIZE


@triton.jit
def _old_blocks(table, n_start, n, there, ONE_BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Return the quantized block of a turn as a scalar, or that of each key [N]."""
    if ONE_BLOCK:
        return tl.load(table + n_start // BLOCK_SIZE).to(tl.int64)
    else:
        return tl.load(table + n // BLOCK_SIZE, mask=there, other=0).to(tl.int64)


@triton.jit
def _take_quantized(
    q,
    found,
    keys,
    values,
    table,
    turns,
    num_old,
    scaling,
    k_layout,
    v_layout,
    dims,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PIECE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """Take in keys and values of quantized blocks, and return what is found then.

    Args:
        q, found, scaling, dims: as of `take_blocks`.
        keys, values: views of their records, number of the head, and strides of blocks and heads in words.
        turns: where the first turn begins, and the end of the keys.
        num_old: how many of them each row sees [M].
        k_layout, v_layout, PIECE: as of `products_with_keys`.
    """
    top, total, acc = found
    for n_start in range(turns[0], turns[1], BLOCK_N):
        n = n_start + tl.arange(0, BLOCK_N)
        there = n < turns[1]
        block = _old_blocks(table, n_start, n, there, BLOCK_SIZE % BLOCK_N == 0, BLOCK_SIZE)
        place = block * keys[2] + keys[1] * keys[3], n_start % BLOCK_SIZE, n % BLOCK_SIZE, there
        products = products_with_keys(q, keys[0], place, k_layout, dims[0], BLOCK_N, dims[2], PIECE)
        scores = scores_of(products, scaling[0], scaling[1], HAS_SOFTCAP)
        visible = there[None, :] & (n[None, :] < num_old[:, None])
        weights, decay, top, total = take_in(tl.where(visible, scores, float("-inf")), top, total)
        place = block * values[2] + values[1] * values[3], n_start % BLOCK_SIZE, n % BLOCK_SIZE, there
        sums = weighted_values(weights, q.dtype, values[0], place, v_layout, dims[1], BLOCK_N, dims[3])
        acc = acc * decay[:, None] + sums
    return top, total, acc


@triton.jit
def _attend(
    query,
    k_pool,
    v_pool,
    k_units,
    k_scales,
    k_minima,
    k_factors,
    v_units,
    v_scales,
    v_minima,
    v_factors,
    out,
    lse,
    counts,
    tiles,
    q_starts,
    q_lens,
    positions,
    first_blocks,
    tables,
    old_tables,
    sinks,
    softmax_scale,
    softcap,
    most_parts,
    table_b,
    old_b,
    q_t,
    q_h,
    kp_n,
    kp_h,
    kp_p,
    vp_n,
    vp_h,
    vp_p,
    ks_n,
    ks_h,
    vs_n,
    vs_h,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM_K: tl.constexpr,
    DIM_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    K_BITS: tl.constexpr,
    K_IS_FP8: tl.constexpr,
    K_UNIT: tl.constexpr,
    K_UNITS: tl.constexpr,
    V_BITS: tl.constexpr,
    V_IS_FP8: tl.constexpr,
    V_UNIT: tl.constexpr,
    V_UNITS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PART_LEN: tl.constexpr,
    MOST_PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    tile = tile_of(tiles, q_lens, positions, GROUP, BLOCK_M)
    sequence, _, position, num_queries = tile
    kv_head = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)

    # Of the keys [0, last) in sight, quantized are at most [0, old_end), exact at least [recent, last).
    last = position + num_queries
    num_parts = count_parts(last, PART_LEN, MOST_PARTS, IS_SPLIT)
    if part >= num_parts:
        return
    low, high = keys_of_part(part, num_parts, 0, last, BLOCK_N)
    old_end = tl.minimum(_num_old(last - 1, BLOCK_SIZE), high)
    recent = _num_old(position, BLOCK_SIZE)

    rows = rows_of(q_starts, tile, kv_head, GROUP, BLOCK_M)
    row_there, at, row, head = rows
    num_old = _num_old(at, BLOCK_SIZE)
    q = load_queries(query, (q_t, q_h), rows, DIM_K, BLOCK_K)
    PIECE: tl.constexpr = WIDE_PIECE if q.dtype == tl.float32 else BLOCK_K
    results = _take_quantized(
        q,
        begin(sinks, head, row_there, part, HAS_SINKS, BLOCK_M, BLOCK_V),
        ((k_units, k_scales, k_minima, k_factors), kv_head, ks_n, ks_h),
        ((v_units, v_scales, v_minima, v_factors), kv_head, vs_n, vs_h),
        old_tables + sequence.to(tl.int64) * old_b,
        (low, old_end),
        num_old,
        (softmax_scale, softcap),
        (K_BITS, K_IS_FP8, K_UNIT, K_UNITS, BLOCK_SIZE % BLOCK_N == 0),
        (V_BITS, V_IS_FP8, V_UNIT, V_UNITS, BLOCK_SIZE % BLOCK_N == 0),
        (DIM_K, DIM_V, BLOCK_K, BLOCK_V),
        BLOCK_SIZE,
        BLOCK_N,
        PIECE,
        HAS_SOFTCAP,
    )
    results = take_blocks(
        q,
        results,
        (k_pool, kv_head, kp_n, kp_h, kp_p),
        (v_pool, kv_head, vp_n, vp_h, vp_p),
        (tables + sequence.to(tl.int64) * table_b, tl.load(first_blocks + sequence)),
        (tl.maximum(low, recent // BLOCK_N * BLOCK_N), recent, high),
        (num_old, at),
        (softmax_scale, softcap),
        (DIM_K, DIM_V, BLOCK_K, BLOCK_V),
        BLOCK_SIZE,
        BLOCK_N,
        PIECE,
        HAS_SOFTCAP,
    )

    there = row * (tl.num_programs(1) * GROUP) + head, row_there
    parts = part, num_parts, most_parts
    store_result(out, lse, counts, results, there, parts, DIM_V, IS_SPLIT, BLOCK_M, BLOCK_V)
