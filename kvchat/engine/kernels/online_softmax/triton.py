"""What kernels of attention in Triton share: how keys are divided, and a softmax that takes them in turns.

Scores are in powers of two. How many parts a sequence's keys are divided into follows from their number
alone. Dimensions: M rows of a tile, N keys of a turn.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def count_parts(num_keys, PART_LEN: tl.constexpr, MOST_PARTS: tl.constexpr):
    """Return over how many programs so many keys are divided."""
    return tl.minimum(tl.cdiv(num_keys, PART_LEN), MOST_PARTS)


@triton.jit
def keys_of_part(part, num_parts, first, last, BLOCK_N: tl.constexpr):
    """Return which of the keys [first, last) one part reads, from a whole turn on."""
    begin = first // BLOCK_N * BLOCK_N
    per_part = tl.cdiv(tl.cdiv(last - begin, num_parts), BLOCK_N) * BLOCK_N
    low = begin + part * per_part
    return low, tl.minimum(low + per_part, last)


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
