"""Attention over quantized and exact blocks in torch operations; any device.

Quantized blocks are turned back into numbers a piece at a time, and what a softmax has found so far is kept
from piece to piece; the exact blocks come last. Dimensions: T tokens in the batch, Q queries of a piece, S
keys of a piece, H query heads, H_kv key-value heads, G = H / H_kv, D head size, N blocks, P block size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, SequenceSpan, heads_first
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool
from kvchat.engine.kernels.quantized_kv.reference import dequantize
from kvchat.engine.kernels.quantized_record import num_quantized

PIECE_LEN = 512
"""Most queries whose scores exist at one time."""
PIECE_NUMBERS = 2**19
"""About as many numbers of keys or values exist at one time."""


def quantized_attention(
    query: Tensor,
    pools: KVPair,
    quantized: QuantizedPool,
    args: AttentionArgs,
    blocks: Sequence[Tensor],
) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    out = query.new_empty(query.shape[0], query.shape[1], pools.values.shape[3])
    for span, old in zip(args.spans, blocks, strict=True):
        for start in range(span.q_start, span.q_end, PIECE_LEN):
            end = min(start + PIECE_LEN, span.q_end)
            piece = SequenceSpan(
                start, end, span.position + start - span.q_start, span.first_block, span.blocks
            )
            out[start:end] = _attend_piece(query[start:end], pools, quantized, args, (piece, old))
    return out


def _attend_piece(
    query: Tensor,
    pools: KVPair,
    quantized: QuantizedPool,
    args: AttentionArgs,
    seen: tuple[SequenceSpan, Tensor],
) -> Tensor:
    span, old = seen
    block_size = pools.keys.shape[2]
    positions = torch.arange(span.position, span.position + len(query), device=query.device)
    num_old = (positions // block_size - 1).clamp_min(0)  # [Q]
    softmax = _Softmax(query, pools, args)
    most = num_quantized(span.position + len(query) - 1, block_size)
    size = max(1, PIECE_NUMBERS // (block_size * pools.keys.shape[1] * pools.keys.shape[3]))
    for first in range(0, most, size):
        part = old[first : min(first + size, most)]
        numbers = torch.arange(first, first + len(part), device=query.device).repeat_interleave(block_size)
        hidden = numbers >= num_old[:, None] if first + len(part) > int(num_old[0]) else None
        keys = dequantize(quantized.keys[part, :, 0], quantized.key_record)
        values = dequantize(quantized.values[part, :, 0], quantized.value_record)
        softmax.add(heads_first(keys), heads_first(values), hidden)
    first = num_quantized(span.position, block_size)
    end = span.position + len(query)
    recent = span.blocks[first - span.first_block : -(-end // block_size) - span.first_block]
    keys, values = (heads_first(pool[recent])[:, : end - first * block_size].float() for pool in pools)
    at = torch.arange(first * block_size, end, device=query.device)
    softmax.add(keys, values, (at < num_old[:, None] * block_size) | (at > positions[:, None]))
    return softmax.result().to(query.dtype)


class _Softmax:
    """What a softmax over some keys has found: the largest score, the sum of weights, and that of values."""

    def __init__(self, query: Tensor, pools: KVPair, args: AttentionArgs) -> None:
        num_queries, num_heads, dim = query.shape
        num_kv_heads, dim_v = pools.values.shape[1], pools.values.shape[3]
        self._args = args
        self._shape = (num_kv_heads, num_heads // num_kv_heads, num_queries)
        packed = (query.float() * args.softmax_scale).view(num_queries, *self._shape[:2], dim)
        self._query = packed.permute(1, 2, 0, 3).flatten(1, 2)  # [H_kv, G * Q, D_k]
        size = self._query.shape[:2]
        self._top = self._query.new_full(size, float("-inf"))
        self._total = self._query.new_zeros(size)
        self._sum = self._query.new_zeros(*size, dim_v)
        if args.sinks is not None:
            sinks = args.sinks.float().view(*self._shape[:2], 1).expand(self._shape)
            self._top = sinks.flatten(1).clone()
            self._total += 1

    def add(self, keys: Tensor, values: Tensor, hidden: Tensor | None) -> None:
        """Take in keys [H_kv, S, D_k] and values [H_kv, S, D_v]; `hidden`: which a query does not see [Q, S].

        What is hidden may be anything, NaN too.
        """
        scores = torch.bmm(self._query, keys.transpose(1, 2))  # [H_kv, G * Q, S]
        if self._args.softcap is not None:
            scores = scores.div_(self._args.softcap).tanh_().mul_(self._args.softcap)
        if hidden is not None:
            scores.view(*self._shape, -1).masked_fill_(hidden, float("-inf"))
            values = values.masked_fill(hidden.all(dim=0)[:, None], 0)
        top = torch.maximum(self._top, scores.amax(dim=2))
        base = top.masked_fill(top == float("-inf"), 0)
        decay = (self._top - base).exp_()
        weights = scores.sub_(base[:, :, None]).exp_()
        self._total = self._total * decay + weights.sum(dim=2)
        self._sum = torch.baddbmm(self._sum * decay[:, :, None], weights, values)
        self._top = top

    def result(self) -> Tensor:
        """Return the weighted means of values [Q, H, D_v]."""
        out = (self._sum / self._total[:, :, None]).unflatten(1, self._shape[1:])
        return out.permute(2, 0, 1, 3).flatten(1, 2)
