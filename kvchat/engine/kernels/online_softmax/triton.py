"""Online softmax and division of keys, shared by Triton attention kernels.

Scores are in powers of two. How many parts a sequence's keys are divided into follows from their number
alone. Dimensions: M rows of a tile, N keys of a turn.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def count_parts(num_keys, PART_LEN: tl.constexpr, MOST_PARTS: tl.constexpr, IS_SPLIT: tl.constexpr = True):
    """Return over how many programs so many keys are divided."""
    if IS_SPLIT:
        return tl.minimum(tl.cdiv(num_keys, PART_LEN), MOST_PARTS)
    else:
        return 1


@triton.jit
def keys_of_part(part, num_parts, first, last, BLOCK_N: tl.constexpr):
    """Return which of the keys [first, last) one part reads, from a whole turn on."""
    begin = first // BLOCK_N * BLOCK_N
    per_part = tl.cdiv(tl.cdiv(last - begin, num_parts), BLOCK_N) * BLOCK_N
    low = begin + part * per_part
    return low, tl.minimum(low + per_part, last)


@triton.jit
def begin(sinks, head, there, part, HAS_SINKS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return what is found before any key: largest scores and sums of weights [M], and sums of values [M, D].

    A sink is one more score, counted by the first part.
    """
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:  # noqa: SIM102 - what is known when compiling is decided then
        if part == 0:
            top = tl.load(sinks + head, mask=there, other=0.0).to(tl.float32) * LOG2E
            total = tl.full([BLOCK_M], 1.0, tl.float32)
    return top, total, tl.zeros([BLOCK_M, BLOCK_D], tl.float32)


@triton.jit
def blocks_of(table, n_start, n, there, first_block, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the block of each key; one look-up serves all where they share it."""
    if BLOCK_SIZE % BLOCK_N == 0:
        number = tl.maximum(n_start // BLOCK_SIZE - first_block, 0)
        return tl.load(table + number).to(tl.int64) + tl.zeros([BLOCK_N], tl.int64)
    else:  # only one of both is compiled
        return tl.load(table + n // BLOCK_SIZE - first_block, mask=there, other=0).to(tl.int64)


@triton.jit
def products_of(queries, keys, PIECE: tl.constexpr):
    """Return the products [M, N] of queries [M, D] with keys [D, N].

    Args:
        PIECE: so many numbers of each are multiplied at a time. Without tensor cores a thread holds all that
            it multiplies in registers.
    """
    BLOCK_D: tl.constexpr = queries.shape[1]
    if BLOCK_D > PIECE:
        NUM: tl.constexpr = BLOCK_D // PIECE
        by_piece = tl.permute(tl.reshape(queries, [queries.shape[0], NUM, PIECE]), (1, 0, 2))
        others = tl.reshape(keys, [NUM, PIECE, keys.shape[1]])
        return tl.sum(tl.dot(by_piece, others, input_precision="ieee"), axis=0)
    else:
        return tl.dot(queries, keys, input_precision="ieee")


@triton.jit
def scores_of(products, softmax_scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """Return scores of the products of queries and keys, in powers of two."""
    scores = products * softmax_scale
    if HAS_SOFTCAP:
        # tanh(x) = 2 sigmoid(2 x) - 1
        scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
    return scores * LOG2E


@triton.jit
def take_in(scores, top, total):
    """Take in the scores of a turn [M, N].

    Returns:
        Their weights [M, N]; by what sums so far shrink, the largest score, and the sum of weights [M] each.
    """
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(scores - shift[:, None])
    decay = tl.exp2(top - shift)
    return weights, decay, new_top, total * decay + tl.sum(weights, axis=1)


@triton.jit
def store_lse(lse, counts, place, row, top, divisor, part, num_parts, there, BLOCK_M: tl.constexpr):
    """Store the log-sum-exp of a part's rows, and by the first part how many there are."""
    tl.store(lse + place, top / LOG2E + tl.log(divisor), mask=there)
    if part == 0:
        tl.store(counts + row, num_parts + tl.zeros([BLOCK_M], tl.int32), mask=there)


@triton.jit
def store_result(
    out,
    lse,
    counts,
    results,
    rows,
    parts,
    DIM: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Store what a program has found, or its part of it.

    Args:
        results: largest scores and sums of weights [M], sums of values [M, D].
        rows: where each row stands among all queries and heads [M], and whether it is there.
        parts: number of this part, of all parts of the sequence, and of those that there is room for.
    """
    top, total, acc = results
    row, there = rows
    part, num_parts, most_parts = parts
    divisor = tl.where(total == 0.0, 1.0, total)
    acc = acc / divisor[:, None]
    d = tl.arange(0, BLOCK_D)[None, :]
    mask = there[:, None] & (d < DIM)
    if IS_SPLIT:
        place = row * most_parts + part
        tl.store(out + place[:, None] * DIM + d, acc, mask=mask)
        store_lse(lse, counts, place, row, top, divisor, part, num_parts, there, BLOCK_M)
    else:
        tl.store(out + row[:, None] * DIM + d, acc.to(out.dtype.element_ty), mask=mask)
