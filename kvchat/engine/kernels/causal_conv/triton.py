"""A short convolution in Triton: one kernel for single tokens and for prompts.

A program sums up for some tokens and channels, tap after tap, so that cuts change no bit. Those of a
sequence's first tokens read the inputs before them and then replace these. Dimensions: as in `reference`,
and P inputs that are kept.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvchat.engine.kernels.triton_support import in_rows

BLOCK_T = 8
"""Tokens of a program; taps are as many at most, so that the first program alone reads what was before."""
BLOCK_C = 128


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor | None = None, *, is_activated: bool
) -> Tensor:
    """Do what the reference does. Effect: `past`, contiguous and of the dtype of `x`, takes in `x`."""
    num_sequences, num_tokens, num_channels = x.shape
    num_taps = weight.shape[1]
    assert num_taps <= BLOCK_T
    assert past is None or (past.is_contiguous() and past.dtype == x.dtype)
    assert past is None or num_taps - 1 <= past.shape[-1]
    x = in_rows(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _convolve[(triton.cdiv(num_channels, BLOCK_C), triton.cdiv(num_tokens, BLOCK_T), num_sequences)](
        x,
        weight.contiguous(),
        x if bias is None else bias.contiguous(),
        x if past is None else past,
        out,
        num_tokens,
        *x.stride()[:2],
        HAS_BIAS=bias is not None,
        IS_ACTIVATED=is_activated,
        **constants(num_channels, num_taps, 0 if past is None else past.shape[-1]),
        num_warps=4,
    )
    return out


def constants(num_channels: int, num_taps: int, num_kept: int) -> dict[str, int]:
    """Return the sizes that the kernel is compiled for.

    Args:
        num_kept: P; 0: there are no inputs before.
    """
    return {
        "NUM_CHANNELS": num_channels,
        "NUM_TAPS": num_taps,
        "NUM_KEPT": num_kept,
        "BLOCK_T": BLOCK_T,
        "BLOCK_C": BLOCK_C,
        "BLOCK_P": triton.next_power_of_2(num_kept),
    }


@triton.jit
def _convolve(
    x,
    weight,
    bias,
    past,
    out,
    num_tokens,
    x_b,
    x_t,
    HAS_BIAS: tl.constexpr,
    IS_ACTIVATED: tl.constexpr,
    NUM_CHANNELS: tl.constexpr,
    NUM_TAPS: tl.constexpr,
    NUM_KEPT: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    sequence, block = tl.program_id(2).to(tl.int64), tl.program_id(1)
    t = (block * BLOCK_T + tl.arange(0, BLOCK_T)[:, None]).to(tl.int64)
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    c = channel[None, :]
    there = c < NUM_CHANNELS
    x += sequence * x_b
    past += sequence * NUM_CHANNELS * NUM_KEPT
    sums = tl.zeros([BLOCK_T, BLOCK_C], tl.float32)
    if HAS_BIAS:
        sums += tl.load(bias + c, mask=there, other=0.0).to(tl.float32)
    for tap in tl.static_range(NUM_TAPS):
        at = t + (tap - NUM_TAPS + 1)
        inputs = tl.load(x + at * x_t + c, mask=there & (at >= 0) & (at < num_tokens), other=0.0)
        if NUM_KEPT > 0:
            inputs = tl.where(
                at < 0, tl.load(past + c * NUM_KEPT + NUM_KEPT + at, mask=there & (at < 0), other=0.0), inputs
            )
        factors = tl.load(weight + c * NUM_TAPS + tap, mask=there, other=0.0).to(tl.float32)
        sums = tl.fma(inputs.to(tl.float32), factors, sums)
    if IS_ACTIVATED:
        rounded = sums.to(out.dtype.element_ty).to(tl.float32)
        sums = rounded / (1.0 + tl.exp(-rounded))
    to = out + (sequence * num_tokens + t) * NUM_CHANNELS + c
    tl.store(to, sums.to(out.dtype.element_ty), mask=there & (t < num_tokens))

    if NUM_KEPT > 0 and block == 0:
        i = tl.arange(0, BLOCK_P)[None, :]
        kept = past + channel[:, None] * NUM_KEPT + i
        is_kept = (channel[:, None] < NUM_CHANNELS) & (i < NUM_KEPT)
        since = (num_tokens - NUM_KEPT + i).to(tl.int64)
        new = tl.load(x + since * x_t + channel[:, None], mask=is_kept & (since >= 0), other=0.0)
        old = tl.load(kept + num_tokens, mask=is_kept & (since < 0), other=0.0)
        tl.debug_barrier()  # all threads have read what was kept
        tl.store(kept, tl.where(since < 0, old, new), mask=is_kept)
