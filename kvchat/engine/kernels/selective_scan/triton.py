"""The selective scan in Triton: one kernel for single tokens and for prompts.

A program of one warp takes channels of a group, their states in registers, through all tokens of a sequence.
The kernel is specialized to nothing that a number of tokens changes: one compiled code computes every cut of
a sequence, which so gives the same bits. Dimensions: as in `reference`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvchat.engine.kernels.state_slots import StateSlots
from kvchat.engine.kernels.triton_support import in_rows

TILE = 512
"""Numbers of states that a program has; of 1024 some spill on sm_100."""


def selective_scan(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor | None, slots: StateSlots
) -> Tensor:
    """Do what the reference does. The same tokens give the same bits in one call as in several.

    Effect: writes the states behind the tokens, [H, P, N] each, into their slots.
    """
    num_sequences, num_tokens, num_heads, head_dim = x.shape
    num_groups, size = b.shape[2:]
    rows, b, c = in_rows(x.flatten(2)), in_rows(b), in_rows(c)
    out = x.new_empty(x.shape, dtype=torch.float32)
    how = constants(num_heads, head_dim, num_groups, size, a.dim() == 2, skip is not None)
    _scan[(triton.cdiv(how["OF_GROUP"], how["BLOCK_D"]), num_groups, num_sequences)](
        slots.states,
        slots.states.stride(0),
        slots.writes if slots.reads is None else slots.reads,
        slots.writes,
        rows,
        dt.contiguous(),
        a.contiguous(),
        b,
        c,
        a if skip is None else skip.contiguous(),
        out,
        int(slots.reads is not None),
        num_tokens,
        *rows.stride()[:2],
        *b.stride()[:3],
        *c.stride()[:3],
        **how,
        num_warps=1,
    )
    return out


def constants(
    num_heads: int, head_dim: int, num_groups: int, size: int, decays_each: bool, has_skip: bool
) -> dict[str, int | bool]:
    """Return what the kernel is compiled for besides dtypes.

    Args:
        size: numbers of a channel's state, N.
        decays_each: each of these numbers has a decay of its own.
    """
    of_group = num_heads * head_dim // num_groups
    block_n = triton.next_power_of_2(size)
    return {
        "NUM_HEADS": num_heads,
        "HEAD_DIM": head_dim,
        "OF_GROUP": of_group,
        "SIZE": size,
        "DECAYS_EACH": decays_each,
        "HAS_SKIP": has_skip,
        "BLOCK_D": min(triton.next_power_of_2(of_group), max(1, TILE // block_n)),
        "BLOCK_N": block_n,
    }


@triton.jit(do_not_specialize=range(2, 21))  # all but states and slot_stride
def _scan(
    states,
    slot_stride,
    reads,
    writes,
    x,
    dt,
    a,
    b,
    c,
    skip,
    out,
    has_past,
    num_tokens,
    x_b,
    x_t,
    b_b,
    b_t,
    b_g,
    c_b,
    c_t,
    c_g,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    OF_GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    DECAYS_EACH: tl.constexpr,
    HAS_SKIP: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    sequence, group = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    within = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    d_there = within < OF_GROUP
    channel = group * OF_GROUP + within
    head = channel // HEAD_DIM
    n = tl.arange(0, BLOCK_N)
    n_there = n < SIZE
    there = d_there[:, None] & n_there[None, :]
    tile = channel[:, None] * SIZE + n[None, :]
    before = states + tl.load(reads + sequence) * slot_stride + tile
    state = tl.load(before, mask=there & (n[None, :] < SIZE * has_past), other=0.0)
    if DECAYS_EACH:
        rates = tl.load(a + head[:, None] * SIZE + n[None, :], mask=there, other=0.0).to(tl.float32)
    else:
        rates = tl.load(a + head, mask=d_there, other=0.0).to(tl.float32)[:, None]

    x += sequence * x_b
    b += sequence * b_b + group * b_g
    c += sequence * c_b + group * c_g
    token = sequence * num_tokens
    for _ in range(num_tokens):
        step = tl.load(dt + token * NUM_HEADS + head, mask=d_there, other=0.0).to(tl.float32)
        row = tl.load(x + channel, mask=d_there, other=0.0).to(tl.float32)
        own_b = tl.load(b + n, mask=n_there, other=0.0).to(tl.float32)
        own_c = tl.load(c + n, mask=n_there, other=0.0).to(tl.float32)
        state = state * tl.exp(step[:, None] * rates) + (step * row)[:, None] * own_b[None, :]
        read = tl.sum(state * own_c[None, :], axis=1)
        if HAS_SKIP:
            read += tl.load(skip + head, mask=d_there, other=0.0).to(tl.float32) * row
        tl.store(out + token * (NUM_HEADS * HEAD_DIM) + channel, read, mask=d_there)
        x += x_t
        b += b_t
        c += c_t
        token += 1
    tl.store(states + tl.load(writes + sequence) * slot_stride + tile, state, mask=there)
