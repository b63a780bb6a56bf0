"""Attention over quantised and exact blocks in Triton: codes become numbers where they are used.

As attention over exact blocks: a program takes a tile of queries, all query heads of one key-value head, and
single queries split their keys by their own length. It walks over the quantised keys of its part first, then
over the exact ones; the scale of an 8-bit token counts with its scores and weights instead of its numbers.
Dimensions: T tokens in the batch, H query heads, H_kv key-value heads, G = H / H_kv, D head size, N blocks, P
block size, B sequences, n quantised blocks of a table, S parts, M tiles.
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
from kvchat.engine.kernels.quantised_kv import triton as packed
from kvchat.engine.kernels.quantised_kv.triton import products_with_keys, weighted_values
from kvchat.engine.kernels.sealed_attention.args import SealedPool, SealedStep
from kvchat.engine.kernels.tiling import HALF, Tiling

PART_LEN = 512
"""A query that stands alone gets a further program for every so many keys."""
MOST_PARTS = 64


def decode_tiling(group: int, head_dim: int, element_size: int) -> Tiling:
    """Return the tiles for single queries whose `group` heads share keys."""
    rows = max(16, triton.next_power_of_2(group))
    if element_size > HALF:
        return _wide_tiling(rows, head_dim)
    return Tiling(block_m=rows, block_n=32, num_warps=4 if rows <= 32 else 8, num_stages=2)


def prefill_tiling(group: int, head_dim: int, element_size: int) -> Tiling:
    """Return the tiles for prompts."""
    rows = max(16, triton.next_power_of_2(group))
    if element_size > HALF:
        return _wide_tiling(rows, head_dim)
    # More of 4 and 2 bits spills: its numbers are made from codes, scales and minima in registers.
    rows = max(32 if head_dim > 128 else 64, rows)
    num_stages = 2 if head_dim <= 64 and rows <= 64 else 1
    return Tiling(block_m=rows, block_n=32, num_warps=8, num_stages=num_stages)


def _wide_tiling(rows: int, head_dim: int) -> Tiling:
    """Return the tiles for float32."""
    num_warps = 8 if rows == 16 and head_dim <= 128 else 16
    return Tiling(block_m=rows, block_n=16, num_warps=num_warps, num_stages=1)


def sealed_attention(
    query: Tensor,
    pools: tuple[Tensor, Tensor],
    sealed: SealedPool,
    args: AttentionArgs,
    step: SealedStep,
) -> Tensor:
    """Return what the reference returns; see there for arguments.

    Args:
        step: with the quantised blocks of each sequence, listed or as tables.
    """
    known = args.prepared
    tables = known if isinstance(known, StepTables) else step_tables(args.spans, args.first_visible)
    old, query = step.padded(), in_rows(query)
    num_heads, block_size = query.shape[1], pools[1].shape[2]
    shape = query.shape[0], num_heads, pools[1].shape[3]
    out = query.new_empty(shape) if args.spans else query.new_zeros(shape)  # rows may have no query
    group = num_heads // pools[1].shape[1]
    sizes = group, max(pools[0].shape[3], pools[1].shape[3]), query.element_size()

    def launch(tiles: Tensor, tiling: Tiling, target: Target) -> None:
        _launch(query, pools, sealed, args, (tables, old, tiles), (tiling, target))

    if tables.singles:
        # What lies in front of the exact blocks is not counted there.
        most_visible = old.shape[1] * block_size + tables.most_visible
        most_parts = max(1, min(MOST_PARTS, -(-most_visible // PART_LEN)))
        tiling = decode_tiling(*sizes)
        in_parts(out, tables, most_parts, lambda target: launch(tables.single_tiles(), tiling, target))
    if tables.others:
        tiling = prefill_tiling(*sizes)
        launch(tables.other_tiles(tiling.block_m // group), tiling, whole(out))
    return out


def _launch(
    query: Tensor,
    pools: tuple[Tensor, Tensor],
    sealed: SealedPool,
    args: AttentionArgs,
    where: tuple[StepTables, Tensor, Tensor],
    how: tuple[Tiling, Target],
) -> None:
    tables, old, tiles = where
    tiling, target = how
    words = [
        [stride // packed.WORD_BYTES for stride in part.stride()[:2]] for part in (sealed.keys, sealed.values)
    ]
    _attend[(tiles.shape[0], pools[1].shape[1], target.most_parts)](
        query,
        *pools,
        *packed.views(sealed.keys, sealed.key_record),
        *packed.views(sealed.values, sealed.value_record),
        target.out,
        target.lse,
        target.counts,
        tiles,
        tables.q_starts,
        tables.q_lens,
        tables.positions,
        tables.first_blocks,
        tables.tables,
        old,
        query if args.sinks is None else args.sinks.contiguous(),
        args.softmax_scale,
        0.0 if args.softcap is None else args.softcap,
        target.most_parts,
        tables.tables.stride(0),
        old.stride(0),
        *query.stride()[:2],
        *pools[0].stride()[:3],
        *pools[1].stride()[:3],
        *words[0],
        *words[1],
        **constants(args, query.shape[1] // pools[1].shape[1], sealed, target.is_split),
        BLOCK_M=tiling.block_m,
        BLOCK_N=tiling.block_n,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )


def constants(args: AttentionArgs, group: int, sealed: SealedPool, is_split: bool) -> dict[str, int | bool]:
    """Return what the kernel is compiled for besides dtypes and tiles."""
    keys, values = sealed.key_record, sealed.value_record
    return {
        "GROUP": group,
        "BLOCK_SIZE": keys.num_tokens,
        "DIM_K": keys.dim,
        "DIM_V": values.dim,
        "BLOCK_K": max(16, triton.next_power_of_2(keys.dim)),
        "BLOCK_V": max(16, triton.next_power_of_2(values.dim)),
        **packed.constants("K", keys),
        **packed.constants("V", values),
        "HAS_SOFTCAP": args.softcap is not None,
        "HAS_SINKS": args.sinks is not None,
        "IS_SPLIT": is_split,
        "PART_LEN": PART_LEN,
        "MOST_PARTS": MOST_PARTS,
    }


@triton.jit
def _old_blocks(table, n_start, n, there, ONE_BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Return the quantised block of a turn as a scalar, or that of each key [N]."""
    if ONE_BLOCK:
        return tl.load(table + n_start // BLOCK_SIZE).to(tl.int64)
    else:
        return tl.load(table + n // BLOCK_SIZE, mask=there, other=0).to(tl.int64)


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
    sequence = tl.load(tiles + 2 * tl.program_id(0))
    start = tl.load(tiles + 2 * tl.program_id(0) + 1)
    kv_head = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)

    # The queries of the tile; of the keys that one of them sees [0, last), quantised are at most [0, old_end)
    # and exact at least [recent, last).
    length = tl.load(q_lens + sequence)
    position = tl.load(positions + sequence) + start
    in_tile = tl.minimum(length - start, BLOCK_M // GROUP)
    last = position + in_tile
    num_parts = 1
    if IS_SPLIT:
        num_parts = count_parts(last, PART_LEN, MOST_PARTS)
    if part >= num_parts:
        return
    low, high = keys_of_part(part, num_parts, 0, last, BLOCK_N)
    old_end = tl.minimum(tl.maximum((last - 1) // BLOCK_SIZE - 1, 0) * BLOCK_SIZE, high)
    recent = tl.maximum(position // BLOCK_SIZE - 1, 0) * BLOCK_SIZE

    m = tl.arange(0, BLOCK_M)
    row_there = m < in_tile * GROUP
    at = position + m // GROUP
    num_old = tl.maximum(at // BLOCK_SIZE - 1, 0) * BLOCK_SIZE
    head = kv_head * GROUP + m % GROUP
    row = (tl.load(q_starts + sequence) + start + m // GROUP).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    v = tl.arange(0, BLOCK_V)
    q_mask = row_there[:, None] & (k[None, :] < DIM_K)
    q = tl.load(query + row[:, None] * q_t + head[:, None] * q_h + k[None, :], mask=q_mask, other=0.0)
    top, total = begin(sinks, head, row_there, part, HAS_SINKS, BLOCK_M)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)

    ONE_BLOCK: tl.constexpr = BLOCK_SIZE % BLOCK_N == 0
    k_side, v_side = (k_units, k_scales, k_minima, k_factors), (v_units, v_scales, v_minima, v_factors)
    old_table = old_tables + sequence.to(tl.int64) * old_b
    for n_start in range(low, old_end, BLOCK_N):
        n = n_start + tl.arange(0, BLOCK_N)
        there = n < old_end
        block = _old_blocks(old_table, n_start, n, there, ONE_BLOCK, BLOCK_SIZE)
        place = block * ks_n + kv_head * ks_h, n_start % BLOCK_SIZE, n % BLOCK_SIZE, there
        products = products_with_keys(
            q, k_side, place, DIM_K, K_BITS, K_IS_FP8, K_UNIT, K_UNITS, ONE_BLOCK, BLOCK_N, BLOCK_K
        )
        scores = scores_of(products, softmax_scale, softcap, HAS_SOFTCAP)
        visible = there[None, :] & (n[None, :] < num_old[:, None])
        weights, decay, top, total = take_in(tl.where(visible, scores, float("-inf")), top, total)
        place = block * vs_n + kv_head * vs_h, n_start % BLOCK_SIZE, n % BLOCK_SIZE, there
        sums = weighted_values(
            weights, q, v_side, place, DIM_V, V_BITS, V_IS_FP8, V_UNIT, V_UNITS, ONE_BLOCK, BLOCK_N, BLOCK_V
        )
        acc = acc * decay[:, None] + sums

    table = tables + sequence.to(tl.int64) * table_b
    first_block = tl.load(first_blocks + sequence)
    for n_start in range(tl.maximum(low, recent // BLOCK_N * BLOCK_N), high, BLOCK_N):
        n = n_start + tl.arange(0, BLOCK_N)
        there = (n >= recent) & (n < high)
        block = blocks_of(table, n_start, n, there, first_block, BLOCK_SIZE, BLOCK_N)
        offset = n % BLOCK_SIZE
        k_at = k_pool + block * kp_n + kv_head * kp_h + offset * kp_p
        keys = tl.load(k_at[None, :] + k[:, None], mask=there[None, :] & (k[:, None] < DIM_K), other=0.0)
        scores = scores_of(
            tl.dot(q, keys.to(q.dtype), input_precision="ieee"), softmax_scale, softcap, HAS_SOFTCAP
        )
        visible = there[None, :] & (n[None, :] <= at[:, None]) & (n[None, :] >= num_old[:, None])
        weights, decay, top, total = take_in(tl.where(visible, scores, float("-inf")), top, total)
        v_at = v_pool + block * vp_n + kv_head * vp_h + offset * vp_p
        values = tl.load(v_at[:, None] + v[None, :], mask=there[:, None] & (v[None, :] < DIM_V), other=0.0)
        sums = tl.dot(weights.to(q.dtype), values.to(q.dtype), input_precision="ieee")
        acc = acc * decay[:, None] + sums

    results = acc, top, total
    rows = row * (tl.num_programs(1) * GROUP) + head, row_there
    parts = part, num_parts, most_parts
    store_result(out, lse, counts, results, rows, parts, DIM_V, IS_SPLIT, BLOCK_M, BLOCK_V)
