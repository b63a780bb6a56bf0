"""Attention in the latent space in Triton: all query heads read one row per token, once.

A program takes a tile of rows, a query and a head each, of one sequence, and one part of its context; parts
are merged by log-sum-exp. Their number follows from the sequence's own length alone. Rows are numbers, or
8-bit records, which are read where they are used; GPUs without the type E4M3 read it by its bits. Source:
FlashMLA, and FlashDecoding for the split. Dimensions: T queries, H query heads, R latent rank, d_r size of
the rope key, N blocks, P block size, B sequences, S parts, M tiles.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvchat.engine.kernels.fp8_record import TILE, Fp8Record
from kvchat.engine.kernels.latent_attention.args import LatentArgs
from kvchat.engine.kernels.merge_lse.triton import merge_lse
from kvchat.engine.kernels.online_softmax.triton import LOG2E, count_parts, keys_of_part, store_lse, take_in
from kvchat.engine.kernels.paged_attention.args import SequenceSpan, StepTables
from kvchat.engine.kernels.paged_attention.step_tables import step_tables
from kvchat.engine.kernels.triton_support import HALF, Tiling, has_e4m3

PART_LEN = 256
MOST_PARTS = 128


def tiling(num_heads: int, element_size: int) -> Tiling:
    """Return the tiles for so many query heads; none spills."""
    if element_size > HALF:
        return Tiling(block_m=16, block_n=16, num_warps=8, num_stages=1)
    if num_heads >= 64:
        return Tiling(block_m=64, block_n=16, num_warps=8, num_stages=2)
    return Tiling(block_m=16, block_n=64, num_warps=8, num_stages=2)


def record_tiling(num_heads: int, element_size: int, by_bits: bool) -> Tiling:
    """Return the tiles for rows that are records; none spills."""
    if element_size > HALF:
        return tiling(num_heads, element_size)
    if num_heads >= 64:
        return Tiling(block_m=32, block_n=32, num_warps=8, num_stages=2)
    return Tiling(block_m=16, block_n=32 if by_bits else 64, num_warps=8, num_stages=2)


def mean_latents(query: Tensor, pool: Tensor, args: LatentArgs, spans: Sequence[SequenceSpan]) -> Tensor:
    """Return what the plain torch function of this name returns; see there for arguments."""
    tables = args.prepared
    if tables is None or len(spans) < len(args.spans):
        ends = accumulate(span.q_end - span.q_start for span in spans)
        rows = zip(spans, ends, strict=True)
        tables = step_tables(
            [replace(span, q_start=end - span.q_end + span.q_start, q_end=end) for span, end in rows],
            lambda _: 0,
        )
    most_visible = max(span.position + span.q_end - span.q_start for span in spans)
    return table_mean_latents(query, pool, args, replace(tables, most_visible=most_visible))


def table_mean_latents(query: Tensor, pool: Tensor, args: LatentArgs, tables: StepTables) -> Tensor:
    """Do the same for sequences that are tensors.

    Args:
        query: [T', H, R + d_r]; rows of the sequences in `tables`, where these say.
    """
    num_tokens, num_heads, dim = query.shape
    rank = args.k_up.shape[2]
    device = query.device
    by_bits = args.record is not None and not has_e4m3(pool)
    choose = tiling if args.record is None else partial(record_tiling, by_bits=by_bits)
    tiles_of = choose(num_heads, query.element_size())
    tiles = tables.head_tiles(num_heads, tiles_of.block_m)
    most_parts = min(MOST_PARTS, -(-tables.most_visible // PART_LEN))
    num_rows = num_tokens * num_heads
    parts = torch.empty(num_rows, most_parts, rank, dtype=torch.float32, device=device)
    lse = torch.empty(num_rows, most_parts, dtype=torch.float32, device=device)
    counts = torch.zeros(num_rows, dtype=torch.int32, device=device)  # rows may have no query
    _attend[(tiles.shape[0], most_parts)](
        query.contiguous(),
        *_views(pool, args.record, by_bits),
        parts,
        lse,
        counts,
        tiles,
        tables.q_starts,
        tables.q_lens,
        tables.positions,
        tables.tables,
        args.softmax_scale,
        most_parts,
        tables.tables.stride(0),
        pool.stride(0),
        pool.stride(2),
        **constants(num_heads, rank, dim - rank, pool.shape[2]),
        **record_constants(args.record, by_bits),
        BLOCK_M=tiles_of.block_m,
        BLOCK_N=tiles_of.block_n,
        num_warps=tiles_of.num_warps,
        num_stages=tiles_of.num_stages,
    )
    return merge_lse(parts, lse, counts).view(num_tokens, num_heads, rank)


def constants(num_heads: int, rank: int, rope_dim: int, block_size: int) -> dict[str, int]:
    """Return what the kernel is compiled for besides dtypes and tiles."""
    return {
        "NUM_HEADS": num_heads,
        "BLOCK_SIZE": block_size,
        "RANK": rank,
        "ROPE": rope_dim,
        "BLOCK_C": max(16, triton.next_power_of_2(rank)),
        "BLOCK_R": max(16, triton.next_power_of_2(rope_dim)),
        "PART_LEN": PART_LEN,
        "MOST_PARTS": MOST_PARTS,
    }


def record_constants(record: Fp8Record | None, by_bits: bool) -> dict[str, int]:
    """Return what the kernel must know of the pool's bytes; zeros where it holds numbers."""
    if record is None:
        return {"TILE": 0, "SCALES_AT": 0, "ROPE_AT": 0, "BY_BITS": 0}
    return {
        "TILE": min(TILE, max(16, triton.next_power_of_2(record.rank))),
        "SCALES_AT": record.scales_at,
        "ROPE_AT": record.rope_at,
        "BY_BITS": int(by_bits),
    }


def _views(pool: Tensor, record: Fp8Record | None, by_bits: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pool as latents, scales and rope keys; they are one tensor where it holds numbers."""
    if record is None:
        return pool, pool, pool
    latents = pool.view(torch.int8) if by_bits else pool.view(torch.float8_e4m3fn)
    return latents, pool.view(torch.float32), pool.view(torch.bfloat16)


@triton.jit
def _queries(query, row, row_there, dims):
    """Return what rows [M] ask latents [M, C] and rope keys [M, R]."""
    RANK: tl.constexpr = dims[0]
    ROPE: tl.constexpr = dims[1]
    c = tl.arange(0, dims[2])
    r = tl.arange(0, dims[3])
    at = query + row[:, None] * (RANK + ROPE)
    q_c = tl.load(at + c[None, :], mask=row_there[:, None] & (c[None, :] < RANK), other=0.0)
    q_r = tl.load(at + RANK + r[None, :], mask=row_there[:, None] & (r[None, :] < ROPE), other=0.0)
    return q_c, q_r


@triton.jit
def _take_latents(
    queries,
    at,
    pools,
    strides,
    table,
    turns,
    factor,
    layout,
    dims,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return sums of latents [M, C], largest scores and sums of weights [M] of the keys of a part.

    Args:
        queries: of `_queries`.
        at: position of each row [M].
        pools: the pool as latents, scales and rope keys.
        strides: of blocks and tokens.
        turns: first and end of the keys.
        factor: of products, for scores in powers of two.
        layout: what `record_constants` returns, in its order; known when compiling.
        dims: sizes of latents and rope keys, and of their tiles; known when compiling.
    """
    q_c, q_r = queries
    numbers = tl.arange(0, dims[2]), tl.arange(0, dims[3])
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, dims[2]], tl.float32)
    for n_start in range(turns[0], turns[1], BLOCK_N):
        n = n_start + tl.arange(0, BLOCK_N)
        there = n < turns[1]
        block = tl.load(table + n // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
        n_at = block * strides[0] + (n % BLOCK_SIZE) * strides[1]
        latents, ropes = _rows_of_turn(pools, n_at, there, numbers, q_c.dtype, layout, dims, BLOCK_N)
        scores = tl.dot(q_c, tl.trans(latents), input_precision="ieee")
        scores += tl.dot(q_r, tl.trans(ropes), input_precision="ieee")
        visible = there[None, :] & (n[None, :] <= at[:, None])
        weights, decay, top, total = take_in(tl.where(visible, scores * factor, float("-inf")), top, total)
        acc = acc * decay[:, None] + tl.dot(weights.to(latents.dtype), latents, input_precision="ieee")
    return acc, top, total


@triton.jit
def _rows_of_turn(pools, n_at, there, numbers, dtype: tl.constexpr, layout, dims, BLOCK_N: tl.constexpr):
    """Return latents [N, C] and rope keys [N, R] of a turn.

    Args:
        n_at: where each token's row begins [N].
        there: which are read [N].
        numbers: of latents [C] and of rope keys [R], from 0 on.
    """
    TILE: tl.constexpr = layout[0]
    ROPE_AT: tl.constexpr = layout[2]
    RANK: tl.constexpr = dims[0]
    c, r = numbers
    r_there = there[:, None] & (r[None, :] < dims[1])
    if TILE:
        latents = _latents(pools, n_at, there, dtype, layout, RANK, BLOCK_N, dims[2])
        ropes_at = pools[2] + (n_at // 2)[:, None] + ROPE_AT // 2 + r[None, :]
        ropes = tl.load(ropes_at, mask=r_there, other=0.0).to(tl.float32).to(dtype)
    else:
        at_row = (pools[0] + n_at)[:, None]
        c_there = there[:, None] & (c[None, :] < RANK)
        latents = tl.load(at_row + c[None, :], mask=c_there, other=0.0).to(dtype)
        ropes = tl.load(at_row + RANK + r[None, :], mask=r_there, other=0.0).to(dtype)
    return latents, ropes


@triton.jit
def _latents(
    pools,
    n_at,
    there,
    dtype: tl.constexpr,
    layout,
    RANK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Return the latents of records as numbers [N, C]."""
    TILE: tl.constexpr = layout[0]
    SCALES_AT: tl.constexpr = layout[1]
    t = tl.arange(0, BLOCK_C // TILE)
    at_tile = t[None, :, None] * TILE + tl.arange(0, TILE)[None, None, :]
    tile_there = there[:, None, None] & (at_tile < RANK)
    BY_BITS: tl.constexpr = layout[3]
    if BY_BITS:
        # Shifted by the missing bits of its mantissa, E4M3 is float16 but for a power of two.
        codes = tl.load(pools[0] + n_at[:, None, None] + at_tile, mask=tile_there, other=0)
        codes = ((codes.to(tl.int16) << 7) & -0x4001).to(tl.float16, bitcast=True) * 256
    else:
        codes = tl.load(pools[0] + n_at[:, None, None] + at_tile, mask=tile_there, other=0.0)
    scales_at = pools[1] + (n_at // 4)[:, None] + SCALES_AT // 4 + t[None, :]
    scales = tl.load(scales_at, mask=there[:, None] & (t[None, :] * TILE < RANK), other=0.0)
    # Scales are powers of two: nothing is rounded but what is too small or too large for float16.
    return tl.reshape(codes.to(dtype) * scales.to(dtype)[:, :, None], [BLOCK_N, BLOCK_C])


@triton.jit
def _attend(
    query,
    pool,
    pool_f32,
    pool_bf16,
    parts,
    lse,
    counts,
    tiles,
    q_starts,
    q_lens,
    positions,
    tables,
    softmax_scale,
    most_parts,
    table_b,
    pool_n,
    pool_p,
    NUM_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PART_LEN: tl.constexpr,
    MOST_PARTS: tl.constexpr,
    TILE: tl.constexpr,
    SCALES_AT: tl.constexpr,
    ROPE_AT: tl.constexpr,
    BY_BITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    sequence = tl.load(tiles + 2 * tl.program_id(0)).to(tl.int64)
    start = tl.load(tiles + 2 * tl.program_id(0) + 1)
    part = tl.program_id(1)
    first_query = tl.load(q_starts + sequence)
    num_queries = tl.load(q_lens + sequence)
    position = tl.load(positions + sequence)

    # How the context is split follows from the length of the sequence, the same for all its queries.
    num_visible = position + num_queries
    num_parts = count_parts(num_visible, PART_LEN, MOST_PARTS)
    if part >= num_parts:
        return
    low, high = keys_of_part(part, num_parts, 0, num_visible, BLOCK_N)

    m = start + tl.arange(0, BLOCK_M)
    row_there = m < num_queries * NUM_HEADS
    at = position + m // NUM_HEADS
    row = (first_query * NUM_HEADS + m).to(tl.int64)
    queries = _queries(query, row, row_there, (RANK, ROPE, BLOCK_C, BLOCK_R))
    acc, top, total = _take_latents(
        queries,
        at,
        (pool, pool_f32, pool_bf16),
        (pool_n, pool_p),
        tables + sequence * table_b,
        (low, high),
        softmax_scale * LOG2E,
        (TILE, SCALES_AT, ROPE_AT, BY_BITS),
        (RANK, ROPE, BLOCK_C, BLOCK_R),
        BLOCK_SIZE,
        BLOCK_M,
        BLOCK_N,
    )

    # A query that stands before this part of the context sees none of it. What is small is stored before the
    # division: behind it sm_100 has no register left for it, and 24 bytes spill.
    divisor = tl.where(total == 0.0, 1.0, total)
    place = row * most_parts + part
    store_lse(lse, counts, place, row, top, divisor, part, num_parts, row_there, BLOCK_M)
    c = tl.arange(0, BLOCK_C)
    out_mask = row_there[:, None] & (c[None, :] < RANK)
    tl.store(parts + place[:, None] * RANK + c[None, :], acc / divisor[:, None], mask=out_mask)
