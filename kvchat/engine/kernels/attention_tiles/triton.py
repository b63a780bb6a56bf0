"""Tile helpers shared by Triton attention kernels: the rows of a tile, and exact blocks one after the other.

Triton puts these functions in where they are called. Where a head's numbers lie in a pool is told by the pool
and the strides of its blocks, heads and tokens. Dimensions: M rows of a tile, a query and a head each, N keys
of a turn, D numbers of a head.
"""

import triton
import triton.language as tl

from kvchat.engine.kernels.online_softmax.triton import blocks_of, products_of, scores_of, take_in


@triton.jit
def tile_of(tiles, q_lens, positions, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return the sequence of this program's tile, the tile's first query there, the position of that query,
    and how many queries the tile has.
    """
    sequence = tl.load(tiles + 2 * tl.program_id(0))
    start = tl.load(tiles + 2 * tl.program_id(0) + 1)
    length = tl.load(q_lens + sequence)
    position = tl.load(positions + sequence) + start
    return sequence, start, position, tl.minimum(length - start, BLOCK_M // GROUP)


@triton.jit
def rows_of(q_starts, tile, kv_head, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return of the rows of a tile [M] which are there, the position of their query, its row in the batch,
    and their head.

    Args:
        q_starts: row of each sequence's first query in the batch [B].
        tile: of `tile_of`.
    """
    sequence, start, position, num_queries = tile
    m = tl.arange(0, BLOCK_M)
    row_there = m < num_queries * GROUP
    at = position + m // GROUP
    head = kv_head * GROUP + m % GROUP
    row = (tl.load(q_starts + sequence) + start + m // GROUP).to(tl.int64)
    return row_there, at, row, head


@triton.jit
def load_queries(query, strides, rows, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the queries of a tile [M, D].

    Args:
        strides: of tokens and heads.
        rows: of `rows_of`.
    """
    row_there, _, row, head = rows
    d = tl.arange(0, BLOCK_D)
    mask = row_there[:, None] & (d[None, :] < DIM)
    return tl.load(
        query + row[:, None] * strides[0] + head[:, None] * strides[1] + d[None, :], mask=mask, other=0.0
    )


@triton.jit
def take_blocks(
    q,
    found,
    keys,
    values,
    table,
    turns,
    seen,
    scaling,
    dims,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PIECE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """Take in keys and values of exact blocks, and return what is found then.

    Args:
        q: queries [M, D].
        found: largest scores and sums of weights [M], sums of values [M, D].
        keys, values: pool, number of the head, and strides of blocks, heads and tokens.
        table: block ids, and the logical number of the first.
        turns: where the first turn begins, and the first and the end of the keys.
        seen: from where and to where each row sees them [M].
        scaling: factor of products, soft cap.
        dims: head sizes of keys and values, and of their tiles; known when compiling.
        PIECE: as of `products_of`.
    """
    DIM_K: tl.constexpr = dims[0]
    DIM_V: tl.constexpr = dims[1]
    top, total, acc = found
    begin, first, end = turns
    k = tl.arange(0, dims[2])
    v = tl.arange(0, dims[3])
    for n_start in range(begin, end, BLOCK_N):
        n = n_start + tl.arange(0, BLOCK_N)
        there = (n >= first) & (n < end)
        block = blocks_of(table[0], n_start, n, there, table[1], BLOCK_SIZE, BLOCK_N)
        k_at = _places(keys, block, n % BLOCK_SIZE)
        k_turn = tl.load(k_at[None, :] + k[:, None], mask=there[None, :] & (k[:, None] < DIM_K), other=0.0)
        products = products_of(q, k_turn.to(q.dtype), PIECE)
        scores = scores_of(products, scaling[0], scaling[1], HAS_SOFTCAP)
        visible = there[None, :] & (n[None, :] <= seen[1][:, None]) & (n[None, :] >= seen[0][:, None])
        weights, decay, top, total = take_in(tl.where(visible, scores, float("-inf")), top, total)
        v_at = _places(values, block, n % BLOCK_SIZE)
        v_turn = tl.load(v_at[:, None] + v[None, :], mask=there[:, None] & (v[None, :] < DIM_V), other=0.0)
        sums = tl.dot(weights.to(q.dtype), v_turn.to(q.dtype), input_precision="ieee")
        acc = acc * decay[:, None] + sums
    return top, total, acc


@triton.jit
def _places(pool, block, offset):
    """Return where the numbers of a head begin [N], in blocks [N] at places of tokens [N]."""
    numbers, head, by_block, by_head, by_token = pool
    return numbers + block * by_block + head * by_head + offset * by_token
