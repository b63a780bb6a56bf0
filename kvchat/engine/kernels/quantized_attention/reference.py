"""Quantize blocks that have become old, and attend over quantized and exact blocks: the definition.

A query at p sees the first `num_quantized(p, P)` blocks of its sequence quantized and the others exact,
whatever else is computed in the same step: what it sees follows from its position alone. Dimensions: T tokens
in the batch, S visible tokens, H query heads, H_kv key-value heads, D head size, N blocks, P block size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, SequenceSpan
from kvchat.engine.kernels.paged_attention.reference import attend
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool, QuantizedStep
from kvchat.engine.kernels.quantized_kv.reference import dequantize, quantize
from kvchat.engine.kernels.quantized_record import num_quantized


def quantize_blocks(k_pool: Tensor, v_pool: Tensor, quantized: QuantizedPool, step: QuantizedStep) -> None:
    """Quantize the step's old blocks of the exact pools [N, H_kv, P, D] into their places."""
    if len(step.sources):
        quantized.keys[step.targets, :, 0] = quantize(k_pool[step.sources], quantized.key_record)
        quantized.values[step.targets, :, 0] = quantize(v_pool[step.sources], quantized.value_record)


def quantized_attention(
    query: Tensor, pools: KVPair, quantized: QuantizedPool, args: AttentionArgs, blocks: Sequence[Tensor]
) -> Tensor:
    """Return attention of each query over its sequence's keys and values, its own included.

    Args:
        query: [T, H, D_k].
        pools: exact keys [N, H_kv, P, D_k] and values [N, H_kv, P, D_v]; spans have nothing before the block
            that precedes that of their first query.
        args: spans and scores; windows and chunks are not for these layers.
        blocks: quantized blocks of each span.

    Returns:
        [T, H, D_v] in the dtype of `query`.
    """
    out = query.new_empty(query.shape[0], query.shape[1], pools.values.shape[3])
    for span, old in zip(args.spans, blocks, strict=True):
        keys, values = dequantized(quantized, old)
        for row in range(span.q_start, span.q_end):
            position = span.position + row - span.q_start
            num_old = num_quantized(position, pools.keys.shape[2]) * pools.keys.shape[2]
            seen = zip((keys, values), pools, strict=True)
            key, value = (
                torch.cat([before[:num_old], _exact(pool, span, num_old, position)]) for before, pool in seen
            )
            out[row] = attend(query[row], key, value, args).to(query.dtype)
    return out


def dequantized(quantized: QuantizedPool, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values [n * P, H_kv, D], float32, of quantized blocks."""
    keys = dequantize(quantized.keys[blocks, :, 0], quantized.key_record)
    values = dequantize(quantized.values[blocks, :, 0], quantized.value_record)
    return keys.transpose(1, 2).flatten(0, 1), values.transpose(1, 2).flatten(0, 1)


def _exact(pool: Tensor, span: SequenceSpan, start: int, position: int) -> Tensor:
    """Return what positions [start, position] have in an exact pool [S, H_kv, D]."""
    block_size = pool.shape[2]
    positions = torch.arange(start, position + 1, device=pool.device)
    blocks = span.blocks[positions // block_size - span.first_block]
    return pool[blocks, :, positions % block_size].float()
