"""Attention over quantized and exact blocks in torch operations; any device.

Quantized blocks are turned back into numbers a piece at a time for an online softmax; the exact blocks come
last. Dimensions: T tokens in the batch, Q queries of a piece, H query heads, H_kv key-value heads, D head
size, N blocks, P block size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvchat.engine.kernels.online_softmax.torch_fallback import OnlineSoftmax
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, SequenceSpan, heads_first
from kvchat.engine.kernels.paged_attention.torch_fallback import PIECE_NUMBERS, pieces, seen
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool
from kvchat.engine.kernels.quantized_kv.reference import dequantize
from kvchat.engine.kernels.quantized_record import num_quantized


def quantized_attention(
    query: Tensor, pools: KVPair, quantized: QuantizedPool, args: AttentionArgs, blocks: Sequence[Tensor]
) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    out = query.new_empty(query.shape[0], query.shape[1], pools.values.shape[3])
    for span, old in zip(args.spans, blocks, strict=True):
        for piece in pieces(span):
            rows = slice(piece.q_start, piece.q_end)
            out[rows] = _attend_piece(query[rows], pools, quantized, args, (piece, old))
    return out


def _attend_piece(
    query: Tensor,
    pools: KVPair,
    quantized: QuantizedPool,
    args: AttentionArgs,
    sequence: tuple[SequenceSpan, Tensor],
) -> Tensor:
    span, old = sequence
    _, num_kv_heads, block_size, dim = pools.keys.shape
    end = span.position + len(query)
    positions = torch.arange(span.position, end, device=query.device)
    num_old = (positions // block_size - 1).clamp_min(0)  # [Q]
    softmax = OnlineSoftmax(query, num_kv_heads, args)
    most = num_quantized(end - 1, block_size)
    size = max(1, PIECE_NUMBERS // (num_kv_heads * block_size * dim))
    for first in range(0, most, size):
        part = old[first : min(first + size, most)]
        numbers = torch.arange(first, first + len(part), device=query.device).repeat_interleave(block_size)
        hidden = numbers >= num_old[:, None] if first + len(part) > int(num_old[0]) else None
        keys = dequantize(quantized.keys[part, :, 0], quantized.key_record)
        values = dequantize(quantized.values[part, :, 0], quantized.value_record)
        softmax.add(heads_first(keys), heads_first(values), hidden)
    start = num_quantized(span.position, block_size) * block_size
    at = torch.arange(start, end, device=query.device)
    hidden = (at < num_old[:, None] * block_size) | (at > positions[:, None])
    softmax.add(*seen(pools, span, start, end), hidden)
    return softmax.result().to(query.dtype)
