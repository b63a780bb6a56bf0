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

from kvchat.engine.kernels.device import in_rows
from kvchat.engine.kernels.online_softmax.triton import (
    begin,
    blocks_of,
    count_parts,
    keys_of_part,
    scores_of,
    store_result,
    take_in,
)
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, StepTables
from kvchat.engine.kernels.paged_attention.parts import Target, in_parts, whole
from kvchat.engine.kernels.paged_attention.step_tables import step_tables
from kvchat.engine.kernels.tiling import HALF, Tiling

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
    return Tiling(block_m=rows, block_n=_keys(head_dim), num_warps=8, num_stages=2)


def _keys(head_dim: int) -> int:
    return 64 if head_dim <= 128 else 32


def paged_attention(
    query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs, tables: StepTables | None = None
) -> Tensor:
    """Return what the reference returns; see there for arguments.

    Args:
        tables: the same sequences as tensors, where a step has made them for all its layers.
    """
    if tables is None:
        known = args.prepared
        tables = known if isinstance(known, StepTables) else step_tables(args.spans, args.first_visible)
    query = in_rows(query)
    shape = query.shape[0], query.shape[1], v_pool.shape[3]
    out = query.new_empty(shape) if args.spans else query.new_zeros(shape)  # rows may have no query
    if tables.singles:
        _decode(query, k_pool, v_pool, args, tables, out)
    if tables.others:
        _prefill(query, k_pool, v_pool, args, tables, out)
    return out


def _decode(
    query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs, tables: StepTables, out: Tensor
) -> None:
    group = query.shape[1] // k_pool.shape[1]
    most_parts = min(MOST_PARTS, -(-tables.most_visible // PART_LEN))
    tiling = decode_tiling(group, max(k_pool.shape[3], v_pool.shape[3]), query.element_size())
    tiles = tables.single_tiles()

    def launch(target: Target) -> None:
        _launch(query, k_pool, v_pool, args, tables, tiles, tiling, target)

    in_parts(out, tables, most_parts, launch)


def _prefill(
    query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs, tables: StepTables, out: Tensor
) -> None:
    group = query.shape[1] // k_pool.shape[1]
    tiling = prefill_tiling(group, max(k_pool.shape[3], v_pool.shape[3]), query.element_size())
    tiles = tables.other_tiles(tiling.block_m // group)
    _launch(query, k_pool, v_pool, args, tables, tiles, tiling, whole(out))


def _launch(
    query: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    args: AttentionArgs,
    tables: StepTables,
    tiles: Tensor,
    tiling: Tiling,
    target: Target,
) -> None:
    num_heads, dim_k = query.shape[1:]
    num_kv_heads, block_size, dim_v = v_pool.shape[1:]
    _attend[(tiles.shape[0], num_kv_heads, target.most_parts)](
        query,
        k_pool,
        v_pool,
        target.out,
        target.lse,
        target.counts,
        tiles,
        tables.q_starts,
        tables.q_lens,
        tables.positions,
        tables.first_blocks,
        tables.tables,
        query if args.sinks is None else args.sinks.contiguous(),
        args.softmax_scale,
        0.0 if args.softcap is None else args.softcap,
        target.most_parts,
        tables.tables.stride(0),
        *query.stride()[:2],
        *k_pool.stride()[:3],
        *v_pool.stride()[:3],
        **constants(args, num_heads // num_kv_heads, block_size, (dim_k, dim_v), target.is_split),
        BLOCK_M=tiling.block_m,
        BLOCK_N=tiling.block_n,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )


def constants(
    args: AttentionArgs, group: int, block_size: int, dims: tuple[int, int], is_split: bool
) -> dict[str, int | bool]:
    """Return what the kernel is compiled for besides dtypes and tiles."""
    return {
        "GROUP": group,
        "BLOCK_SIZE": block_size,
        "DIM_K": dims[0],
        "DIM_V": dims[1],
        "BLOCK_K": max(16, triton.next_power_of_2(dims[0])),
        "BLOCK_V": max(16, triton.next_power_of_2(dims[1])),
        "WINDOW": args.window or 0,
        "CHUNK": args.chunk or 0,
        "HAS_SOFTCAP": args.softcap is not None,
        "HAS_SINKS": args.sinks is not None,
        "IS_SPLIT": is_split,
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
    sequence = tl.load(tiles + 2 * tl.program_id(0))
    start = tl.load(tiles + 2 * tl.program_id(0) + 1)
    kv_head = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)

    # The queries of the tile, and the keys [first, last) that one of them sees.
    length = tl.load(q_lens + sequence)
    position = tl.load(positions + sequence) + start
    in_tile = tl.minimum(length - start, BLOCK_M // GROUP)
    first = _first_visible(position, WINDOW, CHUNK)
    last = position + in_tile
    num_parts = 1
    if IS_SPLIT:
        num_parts = count_parts(last - first, PART_LEN, MOST_PARTS)
    if part >= num_parts:
        return
    low, high = keys_of_part(part, num_parts, first, last, BLOCK_N)

    m = tl.arange(0, BLOCK_M)
    row_there = m < in_tile * GROUP
    at = position + m // GROUP
    head = kv_head * GROUP + m % GROUP
    row = (tl.load(q_starts + sequence) + start + m // GROUP).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    v = tl.arange(0, BLOCK_V)
    q_mask = row_there[:, None] & (k[None, :] < DIM_K)
    q = tl.load(query + row[:, None] * q_t + head[:, None] * q_h + k[None, :], mask=q_mask, other=0.0)
    seen_from = _first_visible(at, WINDOW, CHUNK)
    top, total = begin(sinks, head, row_there, part, HAS_SINKS, BLOCK_M)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)

    table = tables + sequence.to(tl.int64) * table_b
    first_block = tl.load(first_blocks + sequence)
    for n_start in range(low, high, BLOCK_N):
        n = n_start + tl.arange(0, BLOCK_N)
        there = (n >= first) & (n < high)
        block = blocks_of(table, n_start, n, there, first_block, BLOCK_SIZE, BLOCK_N)
        offset = n % BLOCK_SIZE
        k_at = k_pool + block * kp_n + kv_head * kp_h + offset * kp_p
        keys = tl.load(k_at[None, :] + k[:, None], mask=there[None, :] & (k[:, None] < DIM_K), other=0.0)
        products = tl.dot(q, keys.to(q.dtype), input_precision="ieee")
        scores = scores_of(products, softmax_scale, softcap, HAS_SOFTCAP)
        visible = there[None, :] & (n[None, :] <= at[:, None]) & (n[None, :] >= seen_from[:, None])
        weights, decay, top, total = take_in(tl.where(visible, scores, float("-inf")), top, total)
        v_at = v_pool + block * vp_n + kv_head * vp_h + offset * vp_p
        values = tl.load(v_at[:, None] + v[None, :], mask=there[:, None] & (v[None, :] < DIM_V), other=0.0)
        sums = tl.dot(weights.to(q.dtype), values.to(q.dtype), input_precision="ieee")
        acc = acc * decay[:, None] + sums

    results = acc, top, total
    rows = row * (tl.num_programs(1) * GROUP) + head, row_there
    parts = part, num_parts, most_parts
    store_result(out, lse, counts, results, rows, parts, DIM_V, IS_SPLIT, BLOCK_M, BLOCK_V)
