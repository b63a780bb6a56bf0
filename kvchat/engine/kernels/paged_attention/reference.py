"""Attention over block tables: the definition, one query at a time.

Dimensions: T tokens in the batch, S visible tokens, H query heads, H_kv key-value heads, D head size, N
    blocks, P block size.
"""

import torch
from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import AttentionArgs, SequenceSpan, attended


def paged_attention(query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs) -> Tensor:
    """Return attention of each query over its sequence's keys and values, its own included.

    Args:
        query: [T, H, D_k].
        k_pool: [N, H_kv, P, D_k]; slots that no position maps to are never read into the result.
        v_pool: [N, H_kv, P, D_v].
        args: spans and scores.

    Returns:
        [T, H, D_v] in the dtype of `query`; computed in float32, or float64 for float64 inputs.
    """
    out = query.new_empty(query.shape[0], query.shape[1], v_pool.shape[3])
    for span in attended(args.spans):
        for row in range(span.q_start, span.q_end):
            position = span.position + row - span.q_start
            out[row] = _attend(query[row], k_pool, v_pool, args, span, position).to(query.dtype)
    return out


def _attend(
    query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs, span: SequenceSpan, position: int
) -> Tensor:
    block_size = k_pool.shape[2]
    positions = torch.arange(args.first_visible(position), position + 1)
    blocks = span.blocks[positions // block_size - span.first_block]
    keys, values = (pool[blocks, :, positions % block_size] for pool in (k_pool, v_pool))
    return attend(query, keys, values, args)


def attend(query: Tensor, keys: Tensor, values: Tensor, args: AttentionArgs) -> Tensor:
    """Return the attention of a query [H, D_k] over all of keys [S, H_kv, D_k] and values [S, H_kv, D_v]."""
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    group = query.shape[0] // keys.shape[1]
    keys = keys.to(dtype).repeat_interleave(group, dim=1)
    values = values.to(dtype).repeat_interleave(group, dim=1)
    scores = torch.einsum("hd,shd->hs", query.to(dtype), keys) * args.softmax_scale
    if args.softcap is not None:
        scores = args.softcap * torch.tanh(scores / args.softcap)
    if args.sinks is not None:
        scores = torch.cat([scores, args.sinks.to(dtype)[:, None]], dim=1)
    weights = scores.softmax(dim=1)[:, : len(keys)]
    return torch.einsum("hs,shd->hd", weights, values)
