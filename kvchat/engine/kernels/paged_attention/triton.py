"""Attention over block tables in Triton: one kernel for single queries and for prompts.

A program takes a tile of queries, all query heads of one key-value head, and walks over the keys they see
with an online softmax. Single queries split their keys over several programs (FlashDecoding); how many
depends on the sequence's own length alone, so an answer does not change with its neighbours in the batch.
Prompts are not split. Dimensions: T tokens in the batch, H query heads, H_kv key-value heads, G = H / H_kv, D
head size, N blocks, P block size, B sequences, S parts, M tiles.
"""

import triton
import triton.language as tl
from torch import Tensor

from kvchat.engine.kernels.attention_tiles.triton import load_queries, rows_of, take_blocks, tile_of
from kvchat.engine.kernels.online_softmax.triton import begin, count_parts, keys_of_part, store_result
from kvchat.engine.kernels.paged_attention import triton_launcher
from kvchat.engine.kernels.paged_attention.args import AttentionArgs
from kvchat.engine.kernels.paged_attention.step_tables import tables_of
from kvchat.engine.kernels.paged_attention.triton_launcher import LaunchTarget
from kvchat.engine.kernels.triton_support import HALF, MOST_REGISTERS, Tiling, in_rows

PART_LEN = 512
"""A query that stands alone gets a further program for every so many keys."""
MOST_PARTS = 64


def decode_tiling(group: int, head_dim: int, element_size: int) -> Tiling:
    """Return the tiles for single queries whose `group` heads share keys."""
    rows = max(16, triton.next_power_of_2(group))
    if element_size > HALF and rows > 64:
        return Tiling(block_m=rows, block_n=32, num_warps=16, num_stages=1)
    if element_size > HALF:
        return Tiling(block_m=rows, block_n=16, num_warps=4 if rows <= 16 else 8, num_stages=1)
    num_stages = 1 if rows > 64 else 2
    num_warps = 4 if rows <= 32 else 8
    return Tiling(block_m=rows, block_n=_keys(head_dim), num_warps=num_warps, num_stages=num_stages)


def prefill_tiling(group: int, head_dim: int, element_size: int) -> Tiling:
    """Return the tiles for prompts."""
    if element_size > HALF:
        rows = max(32, triton.next_power_of_2(group))
        keys = 32 if rows == 32 and head_dim == 128 else 16
        return Tiling(block_m=rows, block_n=keys, num_warps=8, num_stages=1)
    rows = max(64, triton.next_power_of_2(group))
    if rows == 64 and head_dim <= 128:  # four warps: nearly twice as fast as eight on an H200
        keys = 64 if head_dim <= 64 else 32  # more of them spills on sm_80
        return Tiling(block_m=rows, block_n=keys, num_warps=4, num_stages=2, max_registers=MOST_REGISTERS)
    return Tiling(block_m=rows, block_n=_keys(head_dim), num_warps=8, num_stages=2)


def _keys(head_dim: int) -> int:
    return 64 if head_dim <= 128 else 32


def paged_attention(query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    tables = tables_of(args)
    query = in_rows(query)
    num_heads, dim_k = query.shape[1:]
    num_kv_heads, block_size, dim_v = v_pool.shape[1:]
    out = triton_launcher.empty_result(query, dim_v, args)
    group = num_heads // num_kv_heads
    most_parts = min(MOST_PARTS, -(-tables.most_visible // PART_LEN))

    def launch(tiles: Tensor, tiling: Tiling, target: LaunchTarget) -> None:
        _attend[(tiles.shape[0], num_kv_heads, target.most_parts)](
            query,
            k_pool,
            v_pool,
            *target.tensors(),
            tiles,
            *triton_launcher.sequences(tables),
            *triton_launcher.scores(query, args),
            target.most_parts,
            tables.tables.stride(0),
            *query.stride()[:2],
            *k_pool.stride()[:3],
            *v_pool.stride()[:3],
            **constants(args, group, block_size, (dim_k, dim_v), target.is_split),
            **triton_launcher.options(tiling),
        )

    sizes = group, max(dim_k, dim_v), query.element_size()
    decode, prefill = decode_tiling(*sizes), prefill_tiling(*sizes)
    triton_launcher.attend(out, tables, (group, most_parts), decode, prefill, launch)
    return out


def constants(
    args: AttentionArgs, group: int, block_size: int, dims: tuple[int, int], is_split: bool
) -> dict[str, int | bool]:
    """Return what the kernel is compiled for besides dtypes and tiles."""
    return {
        **triton_launcher.constants(args, group, block_size, dims, is_split),
        "WINDOW": args.window or 0,
        "CHUNK": args.chunk or 0,
        "PART_LEN": PART_LEN,
        "MOST_PARTS": MOST_PARTS,
    }


@triton.jit
def _first_visible(position, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    first = position * 0
    if WINDOW > 0:
        first = tl.maximum(position - WINDOW + 1, 0)
    if CHUNK > 0:
        first = position - position % CHUNK
    return first


@triton.jit
def _attend(
    query,
    k_pool,
    v_pool,
    out,
    lse,
    counts,
    tiles,
    q_starts,
    q_lens,
    positions,
    first_blocks,
    tables,
    sinks,
    softmax_scale,
    softcap,
    most_parts,
    table_b,
    q_t,
    q_h,
    kp_n,
    kp_h,
    kp_p,
    vp_n,
    vp_h,
    vp_p,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM_K: tl.constexpr,
    DIM_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
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

    # The keys [first, last) that a query of the tile sees.
    first = _first_visible(position, WINDOW, CHUNK)
    last = position + num_queries
    num_parts = count_parts(last - first, PART_LEN, MOST_PARTS, IS_SPLIT)
    if part >= num_parts:
        return
    low, high = keys_of_part(part, num_parts, first, last, BLOCK_N)

    rows = rows_of(q_starts, tile, kv_head, GROUP, BLOCK_M)
    row_there, at, row, head = rows
    results = take_blocks(
        load_queries(query, (q_t, q_h), rows, DIM_K, BLOCK_K),
        begin(sinks, head, row_there, part, HAS_SINKS, BLOCK_M, BLOCK_V),
        (k_pool, kv_head, kp_n, kp_h, kp_p),
        (v_pool, kv_head, vp_n, vp_h, vp_p),
        (tables + sequence.to(tl.int64) * table_b, tl.load(first_blocks + sequence)),
        (low, first, high),
        (_first_visible(at, WINDOW, CHUNK), at),
        (softmax_scale, softcap),
        (DIM_K, DIM_V, BLOCK_K, BLOCK_V),
        BLOCK_SIZE,
        BLOCK_N,
        BLOCK_K,
        HAS_SOFTCAP,
    )

    there = row * (tl.num_programs(1) * GROUP) + head, row_there
    parts = part, num_parts, most_parts
    store_result(out, lse, counts, results, there, parts, DIM_V, IS_SPLIT, BLOCK_M, BLOCK_V)
