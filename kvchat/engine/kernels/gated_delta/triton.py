"""The gated delta rule in Triton: one kernel for single tokens and for prompts.

A program of one warp takes columns of a head's state, in registers, through all tokens of a sequence. The
kernel is specialized to nothing that a number of tokens changes: one compiled code computes every cut of a
sequence, which so gives the same bits. Dimensions: as in `reference`.
"""

import triton
import triton.language as tl
from torch import Tensor

from kvchat.engine.kernels.gated_delta.reference import EPSILON
from kvchat.engine.kernels.state_slots import StateSlots
from kvchat.engine.kernels.triton_support import in_rows

TILE = 1024
"""Numbers of a state that a program has."""


def gated_delta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    slots: StateSlots,
    *,
    is_normal: bool,
) -> Tensor:
    """Do what the reference does. The same tokens give the same bits in one call as in several.

    Effect: writes the states behind the tokens, [H, K, V] each, into their slots.
    """
    num_sequences, num_tokens, num_heads, value_dim = value.shape
    key_heads, key_dim = key.shape[2:]
    query, key, value = in_rows(query), in_rows(key), in_rows(value)
    out = query.new_empty(value.shape)
    how = constants(num_heads // key_heads, key_dim, value_dim, decay.dim() == 4, is_normal)
    _scan[(triton.cdiv(value_dim, how["BLOCK_V"]), num_heads, num_sequences)](
        slots.states,
        slots.states.stride(0),
        slots.writes if slots.reads is None else slots.reads,
        slots.writes,
        query,
        key,
        value,
        decay.contiguous(),
        beta.contiguous(),
        out,
        int(slots.reads is not None),
        num_tokens,
        *query.stride()[:3],
        *key.stride()[:3],
        *value.stride()[:3],
        **how,
        num_warps=1,
    )
    return out


def constants(
    group: int, key_dim: int, value_dim: int, decays_each: bool, is_normal: bool
) -> dict[str, int | float | bool]:
    """Return what the kernel is compiled for besides dtypes.

    Args:
        group: value heads of a key head.
        decays_each: each number of a key has a decay of its own.
    """
    block_k = triton.next_power_of_2(key_dim)
    return {
        "GROUP": group,
        "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim,
        "DECAYS_EACH": decays_each,
        "IS_NORMAL": is_normal,
        "EPSILON": EPSILON,
        "SCALE": key_dim**-0.5,
        "BLOCK_K": block_k,
        "BLOCK_V": min(triton.next_power_of_2(value_dim), max(1, TILE // block_k)),
    }


@triton.jit
def _row_of(head, there, IS_NORMAL: tl.constexpr, EPSILON: tl.constexpr):
    row = tl.load(head, mask=there, other=0.0).to(tl.float32)
    if IS_NORMAL:
        row *= tl.rsqrt(tl.sum(row * row, axis=0) + EPSILON)
    return row


@triton.jit(do_not_specialize=range(2, 21))  # all but states and slot_stride
def _scan(
    states,
    slot_stride,
    reads,
    writes,
    query,
    key,
    value,
    decay,
    beta,
    out,
    has_past,
    num_tokens,
    q_b,
    q_t,
    q_h,
    k_b,
    k_t,
    k_h,
    v_b,
    v_t,
    v_h,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    DECAYS_EACH: tl.constexpr,
    IS_NORMAL: tl.constexpr,
    EPSILON: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    sequence, head = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    num_heads = tl.num_programs(1)
    k = tl.arange(0, BLOCK_K)
    v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    k_there, v_there = k < KEY_DIM, v < VALUE_DIM
    there = k_there[:, None] & v_there[None, :]
    tile = head * KEY_DIM * VALUE_DIM + k[:, None] * VALUE_DIM + v[None, :]
    before = states + tl.load(reads + sequence) * slot_stride + tile
    state = tl.load(before, mask=there & (k[:, None] < KEY_DIM * has_past), other=0.0)

    query += sequence * q_b + head // GROUP * q_h
    key += sequence * k_b + head // GROUP * k_h
    value += sequence * v_b + head * v_h
    row = sequence * num_tokens * num_heads + head
    for _ in range(num_tokens):
        own_query = _row_of(query + k, k_there, IS_NORMAL, EPSILON)
        own_key = _row_of(key + k, k_there, IS_NORMAL, EPSILON)
        own_value = tl.load(value + v, mask=v_there, other=0.0).to(tl.float32)
        if DECAYS_EACH:
            logs = tl.load(decay + row * KEY_DIM + k, mask=k_there, other=0.0)[:, None]
        else:
            logs = tl.load(decay + row)
        state *= tl.exp(logs.to(tl.float32))
        read = tl.sum(state * own_key[:, None], axis=0)
        change = (own_value - read) * tl.load(beta + row).to(tl.float32)
        state += own_key[:, None] * change[None, :]
        found = tl.sum(state * own_query[:, None], axis=0) * SCALE
        tl.store(out + row * VALUE_DIM + v, found.to(out.dtype.element_ty), mask=v_there)
        query += q_t
        key += k_t
        value += v_t
        row += num_heads
    tl.store(states + tl.load(writes + sequence) * slot_stride + tile, state, mask=there)
