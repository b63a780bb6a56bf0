"""The steps of a shadowed context in Triton: scores of landmarks, hits and misses, values and keys in place.

A working set of a head keeps what stays where it is; the other slots are filled, from blocks that may lie in
pinned host memory, or with keys that are made of projections. Tensors may be parts of larger ones, as long as
the last dimension of each lies in a row. Dimensions: C chunks, c tokens of a chunk, Q queries, H query heads,
H_kv key-value heads, G = H / H_kv, D head size, R numbers of a head that turn, r rank, k slots, N blocks, P
tokens of a block.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvchat.engine.kernels.shadow_kv.args import Change, Rotations
from kvchat.engine.kernels.triton_support import HALF, MOST_REGISTERS

SCORED_CHUNKS = 64
"""Landmarks of a tile."""
RESTORED_ROWS = 16
"""Tokens of a tile whose keys are made: the fewest that tensor cores multiply."""
RANK_PIECE = 32
DIM_PIECE = 64
"""Numbers of a head, and of the rank, that are multiplied at a time."""


def chunk_scores(query: Tensor, means: Tensor, always: Tensor, softmax_scale: float) -> Tensor:
    """Return what the reference returns [H_kv, C]; see there for arguments."""
    num_queries, num_heads, dim = query.shape
    num_chunks, num_kv_heads, _ = means.shape
    _assert_in_a_row(query, means, always)
    rows = num_queries * (num_heads // num_kv_heads)
    raw = torch.empty(num_kv_heads, rows, num_chunks, dtype=torch.float32, device=query.device)
    constants = score_constants(num_heads // num_kv_heads, dim, query.element_size())
    tile = constants["BLOCK_M"]
    grid = (triton.cdiv(num_chunks, SCORED_CHUNKS), num_kv_heads, triton.cdiv(rows, tile))
    strides = (*query.stride()[:2], *means.stride()[:2], always.stride(0))
    how = options(query.element_size())
    _score[grid](query, means, always, raw, rows, num_chunks, softmax_scale, *strides, **constants, **how)
    sums = raw.logsumexp(dim=2)
    scores = raw.new_empty(num_kv_heads, num_chunks)
    _best[(triton.cdiv(num_chunks, SCORED_CHUNKS), num_kv_heads)](
        raw, sums, scores, rows, num_chunks, BLOCK_C=SCORED_CHUNKS
    )
    return scores


def options(element_size: int) -> dict[str, int]:
    """Return how many tiles of a product are under way, and registers of a thread.

    More tiles of float32 spill; left alone, the compiler spills a few bytes for more programs at a time.
    """
    return {"num_stages": 1, "maxnreg": MOST_REGISTERS} if element_size > HALF else {"num_stages": 3}


def score_constants(group: int, dim: int, element_size: int) -> dict[str, int]:
    """Return what the kernel is compiled for; a row of a tile is a query and a head."""
    rows = 16 if element_size > HALF else max(16, triton.next_power_of_2(min(group, 64)))
    return {
        "GROUP": group,
        "DIM": dim,
        "BLOCK_M": rows,
        "BLOCK_C": SCORED_CHUNKS,
        "BLOCK_D": max(16, min(DIM_PIECE, triton.next_power_of_2(dim))),
    }


def exchange(held: Tensor, wanted: Tensor) -> Change:
    """Return slots and what is missing in them, as the reference does for each head.

    Args:
        held: [H_kv, k], -1 for an empty slot.
        wanted: [H_kv, k], at most MOST_SLOTS, each different in its head.
    """
    num_kv_heads, num_slots = wanted.shape
    _assert_in_a_row(held, wanted)
    if not num_slots:
        return Change(slots=held.clone(), is_missing=torch.zeros_like(held, dtype=torch.bool))
    slots, missing = (held.new_empty(held.shape) for _ in range(2))
    is_missing = torch.empty(held.shape, dtype=torch.bool, device=held.device)
    strides = held.stride(0), wanted.stride(0)
    block = triton.next_power_of_2(num_slots)
    _exchange[(num_kv_heads,)](held, wanted, slots, is_missing, missing, num_slots, *strides, BLOCK_K=block)
    return Change(slots=slots, is_missing=is_missing)


def load_chunks(pool: Tensor, blocks: Tensor, change: Change, out: Tensor) -> None:
    """Fill the missing slots of `out` [H_kv, k, c, D] from blocks, as the reference does; see there.

    Effect: the device reads the pool by itself, wherever it lies.
    """
    slots, is_missing = change.slots, change.is_missing
    _assert_in_a_row(pool, blocks, slots, is_missing, out)
    num_kv_heads, num_slots = slots.shape
    if not num_slots:
        return
    strides = (*pool.stride()[:3], slots.stride(0), is_missing.stride(0), *out.stride()[:3])
    constants = load_constants(out.shape[2], out.shape[3], pool.shape[2])
    _load[(num_slots, num_kv_heads)](pool, blocks, slots, is_missing, out, *strides, **constants)


def load_constants(chunk_size: int, dim: int, block_size: int) -> dict[str, int]:
    """Return what the kernel is compiled for."""
    numbers = triton.next_power_of_2(chunk_size * dim)
    return {"CHUNK": chunk_size, "DIM": dim, "BLOCK_SIZE": block_size, "NUMBERS": numbers}


def restore_keys(
    projections: Tensor,
    directions: Tensor,
    change: Change,
    turns: Rotations,
    out: Tensor,
    first_chunk: int = 0,
) -> None:
    """Fill the missing slots of `out` [H_kv, k, c, D], as the reference does; see there for arguments."""
    slots, is_missing = change.slots, change.is_missing
    _assert_in_a_row(projections, directions, slots, is_missing, turns.cosines, turns.sines, out)
    num_kv_heads, num_slots = slots.shape
    size, rank = projections.shape[1:]
    grid = (triton.cdiv(num_slots * size, RESTORED_ROWS), num_kv_heads)
    strides = (
        *projections.stride()[:2],
        directions.stride(0),
        slots.stride(0),
        is_missing.stride(0),
        turns.cosines.stride(0),
        turns.sines.stride(0),
        *out.stride()[:3],
    )
    constants = restore_constants(size, out.shape[3], 2 * turns.cosines.shape[1], turns.are_neighbours)
    _restore[grid](
        projections,
        directions,
        slots,
        is_missing,
        turns.cosines,
        turns.sines,
        out,
        num_slots,
        rank,
        first_chunk,
        len(projections),
        *strides,
        **constants,
        **options(projections.element_size()),
    )


def restore_constants(
    chunk_size: int, dim: int, num_turned: int, are_neighbours: bool
) -> dict[str, int | bool]:
    """Return what the kernel is compiled for."""
    return {
        "CHUNK": chunk_size,
        "DIM": dim,
        "TURNED": num_turned,
        "NEIGHBOURS": are_neighbours,
        "BLOCK_M": RESTORED_ROWS,
        "BLOCK_R": RANK_PIECE,
        "BLOCK_HALF": max(16, triton.next_power_of_2(num_turned // 2)),
        "BLOCK_REST": max(16, triton.next_power_of_2(dim - num_turned)),
    }


def _assert_in_a_row(*tensors: Tensor) -> None:
    """Hold what the kernels assume: the last dimension of a tensor has no gaps."""
    assert all(tensor.stride(-1) == 1 for tensor in tensors), "numbers lie in a row"


@triton.jit
def _score(
    query,
    means,
    always,
    raw,
    num_rows,
    num_chunks,
    softmax_scale,
    q_t,
    q_h,
    m_c,
    m_h,
    a_h,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    chunk = (tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    row_there, chunk_there = row < num_rows, chunk < num_chunks
    q_at = query + (row // GROUP).to(tl.int64)[:, None] * q_t + (head * GROUP + row % GROUP)[:, None] * q_h
    m_at = means + chunk[None, :] * m_c + head * m_h
    scores = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for start in range(0, DIM, BLOCK_D):
        own = start + d
        q = tl.load(q_at + own[None, :], mask=row_there[:, None] & (own[None, :] < DIM), other=0.0)
        m = tl.load(m_at + own[:, None], mask=chunk_there[None, :] & (own[:, None] < DIM), other=0.0)
        scores += tl.dot(q, m.to(q.dtype), input_precision="ieee")
    is_seen = tl.load(always + head * a_h + chunk, mask=chunk_there, other=0) != 0
    scores = tl.where(is_seen[None, :], float("-inf"), scores * softmax_scale)
    place = (head * num_rows + row)[:, None] * num_chunks + chunk[None, :]
    tl.store(raw + place, scores, mask=row_there[:, None] & chunk_there[None, :])


@triton.jit
def _best(raw, sums, scores, num_rows, num_chunks, BLOCK_C: tl.constexpr):
    head = tl.program_id(1).to(tl.int64)
    chunk = (tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)
    there = chunk < num_chunks
    best = tl.zeros([BLOCK_C], tl.float32)
    for row in range(num_rows):
        at = head * num_rows + row
        score = tl.load(raw + at * num_chunks + chunk, mask=there, other=float("-inf"))
        best = tl.maximum(best, tl.exp(score - tl.load(sums + at)))
    tl.store(scores + head * num_chunks + chunk, best, mask=there)


@triton.jit
def _exchange(held, wanted, slots, is_missing, missing, num_slots, h_h, w_h, BLOCK_K: tl.constexpr):
    number_of_head = tl.program_id(0).to(tl.int64)
    head = number_of_head * num_slots
    k = tl.arange(0, BLOCK_K)
    there = k < num_slots
    own = tl.load(held + number_of_head * h_h + k, mask=there, other=-1)
    stays = tl.zeros([BLOCK_K], tl.int32)
    num_missing = 0
    for number in range(num_slots):
        chunk = tl.load(wanted + number_of_head * w_h + number)
        hits = ((own == chunk) & there).to(tl.int32)
        stays = stays | hits
        is_hit = tl.max(hits, axis=0)
        # In the order in which they are wanted; a hit is overwritten by the next one.
        tl.store(missing + head + num_missing, chunk, mask=is_hit == 0)
        num_missing += 1 - is_hit
    tl.debug_barrier()  # what one thread wrote, others read
    leaves = there & (stays == 0)
    rank = tl.cumsum(leaves.to(tl.int32), axis=0) - 1
    fresh = tl.load(missing + head + rank, mask=leaves, other=-1)
    tl.store(slots + head + k, tl.where(leaves, fresh, own), mask=there)
    tl.store(is_missing + head + k, leaves, mask=there)


@triton.jit
def _load(
    pool,
    blocks,
    slots,
    is_missing,
    out,
    v_n,
    v_h,
    v_p,
    s_h,
    i_h,
    o_h,
    o_k,
    o_t,
    CHUNK: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NUMBERS: tl.constexpr,
):
    slot, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    if tl.load(is_missing + head * i_h + slot):
        first = tl.load(slots + head * s_h + slot).to(tl.int64) * CHUNK
        block = tl.load(blocks + first // BLOCK_SIZE).to(tl.int64)
        number = tl.arange(0, NUMBERS)
        there = number < CHUNK * DIM
        token, d = number // DIM, number % DIM
        at = pool + block * v_n + head * v_h + (first % BLOCK_SIZE + token) * v_p
        values = tl.load(at + d, mask=there, other=0.0)
        tl.store(out + head * o_h + slot * o_k + token * o_t + d, values, mask=there)


@triton.jit
def _product(
    p_rows,
    p_there,
    d_rows,
    d_there,
    rank,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Return keys before rotation [BLOCK_M, BLOCK_N] of rows of projections, in directions of a head."""
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, rank, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        p = tl.load(p_rows[:, None] + r[None, :], mask=p_there[:, None] & (r[None, :] < rank), other=0.0)
        d = tl.load(d_rows[None, :] + r[:, None], mask=d_there[None, :] & (r[:, None] < rank), other=0.0)
        acc += tl.dot(p, d, input_precision="ieee")
    return acc


@triton.jit
def _restore(
    projections,
    directions,
    slots,
    is_missing,
    cosines,
    sines,
    out,
    num_slots,
    rank,
    first_chunk,
    num_chunks,
    p_c,
    p_t,
    d_r,
    s_h,
    i_h,
    cos_t,
    sin_t,
    o_h,
    o_k,
    o_t,
    CHUNK: tl.constexpr,
    DIM: tl.constexpr,
    TURNED: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    slot, own = (row // CHUNK).to(tl.int64), row % CHUNK
    misses = tl.load(is_missing + head * i_h + slot, mask=slot < num_slots, other=0) != 0
    chunk = tl.load(slots + head * s_h + slot, mask=misses, other=-1).to(tl.int64)
    wants = misses & (chunk >= first_chunk) & (chunk < first_chunk + num_chunks)
    if tl.max(wants.to(tl.int32), axis=0) == 0:
        return
    token = chunk * CHUNK + own
    rows = projections + (chunk - first_chunk) * p_c + own * p_t
    place = out + head * o_h + slot * o_k + own * o_t

    half = tl.arange(0, BLOCK_HALF)
    in_half = half < TURNED // 2
    if NEIGHBOURS:
        first, second = 2 * half, 2 * half + 1
    else:
        first, second = half, half + TURNED // 2
    columns = directions + head * DIM * d_r
    a = _product(rows, wants, columns + first * d_r, in_half, rank, BLOCK_M, BLOCK_HALF, BLOCK_R)
    b = _product(rows, wants, columns + second * d_r, in_half, rank, BLOCK_M, BLOCK_HALF, BLOCK_R)
    mask = wants[:, None] & in_half[None, :]
    cosine = tl.load(cosines + token[:, None] * cos_t + half[None, :], mask=mask, other=0.0)
    sine = tl.load(sines + token[:, None] * sin_t + half[None, :], mask=mask, other=0.0)
    kept = out.dtype.element_ty
    tl.store(place[:, None] + first[None, :], (a * cosine - b * sine).to(kept), mask=mask)
    tl.store(place[:, None] + second[None, :], (b * cosine + a * sine).to(kept), mask=mask)
    if TURNED < DIM:
        rest = TURNED + tl.arange(0, BLOCK_REST)
        in_rest = rest < DIM
        c = _product(rows, wants, columns + rest * d_r, in_rest, rank, BLOCK_M, BLOCK_REST, BLOCK_R)
        tl.store(place[:, None] + rest[None, :], c.to(kept), mask=wants[:, None] & in_rest[None, :])
