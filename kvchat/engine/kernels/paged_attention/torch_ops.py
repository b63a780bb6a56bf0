"""Attention over block tables in a few torch operations per sequence or batch of sequences; any device.

Query heads that share a key-value head are packed into one matrix product, and long prompts are computed in
pieces so that the scores stay small. Dimensions: T tokens in the batch, Q queries of a piece, B sequences
that decode together, S visible tokens, H query heads, H_kv key-value heads, G = H / H_kv, D head size, N
blocks, P block size.
"""

import torch
from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import AttentionArgs, DecodeBatch, SequenceSpan
from kvchat.engine.kernels.paged_attention.decodes import batch_decodes

PIECE_LEN = 256
"""Most queries whose scores exist at one time."""


def paged_attention(query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    out = query.new_empty(query.shape[0], query.shape[1], v_pool.shape[3])
    decodes = args.decodes or batch_decodes(args.spans, args.first_visible, k_pool.shape[2])
    for batch in decodes.batches:
        out[batch.rows] = _attend_batch(query[batch.rows], k_pool, v_pool, args, batch)
    for span in decodes.spans:
        for start in range(span.q_start, span.q_end, PIECE_LEN):
            end = min(start + PIECE_LEN, span.q_end)
            position = span.position + start - span.q_start
            out[start:end] = _attend_piece(query[start:end], k_pool, v_pool, args, span, position)
    return out


def _attend_piece(
    query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs, span: SequenceSpan, position: int
) -> Tensor:
    num_queries, num_heads, _ = query.shape
    num_kv_heads, block_size = k_pool.shape[1], k_pool.shape[2]
    last = position + num_queries
    first = args.first_visible(position)
    first_block = first // block_size
    blocks = span.blocks[first_block - span.first_block : -(-last // block_size) - span.first_block]
    start, end = first - first_block * block_size, last - first_block * block_size
    keys = _gather(k_pool, blocks)[:, start:end]  # [H_kv, S, D_k]
    values = _gather(v_pool, blocks)[:, start:end]  # [H_kv, S, D_v]
    group = num_heads // num_kv_heads
    packed = query.view(num_queries, num_kv_heads, group, -1).permute(1, 2, 0, 3)  # [H_kv, G, Q, D_k]
    packed = packed.reshape(num_kv_heads, group * num_queries, -1).float()
    scores = torch.bmm(packed, keys.transpose(1, 2)).mul_(args.softmax_scale)
    scores = scores.view(num_kv_heads, group, num_queries, end - start)
    if args.softcap is not None:
        scores = scores.div_(args.softcap).tanh_().mul_(args.softcap)
    if num_queries > 1:
        scores.masked_fill_(_hidden(first, position, last, args, query.device), float("-inf"))
    weights = _softmax(scores, args.sinks).view(num_kv_heads, group * num_queries, end - start)
    out = torch.bmm(weights, values).view(num_kv_heads, group, num_queries, -1)
    return out.permute(2, 0, 1, 3).reshape(num_queries, num_heads, -1).to(query.dtype)


def _attend_batch(
    query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs, batch: DecodeBatch
) -> Tensor:
    """Return the attention of single queries [B, H, D_k], each over its own sequence."""
    num_queries, num_heads, _ = query.shape
    num_kv_heads = k_pool.shape[1]
    keys = _gather_batch(k_pool, batch.blocks)  # [B, H_kv, S, D_k]
    values = _gather_batch(v_pool, batch.blocks)  # [B, H_kv, S, D_v]
    # What nobody wrote may be anything, NaN too, and nothing times NaN is NaN.
    values.masked_fill_(batch.hidden[:, None, :, None], 0)
    grouped = query.reshape(num_queries, num_kv_heads, num_heads // num_kv_heads, -1).float()
    scores = (grouped @ keys.transpose(2, 3)).mul_(args.softmax_scale)  # [B, H_kv, G, S]
    if args.softcap is not None:
        scores = scores.div_(args.softcap).tanh_().mul_(args.softcap)
    scores.masked_fill_(batch.hidden[:, None, None, :], float("-inf"))
    if args.sinks is not None:
        sinks = args.sinks.float().view(num_kv_heads, -1, 1).expand(num_queries, -1, -1, -1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(dim=-1)[..., : values.shape[2]]
    return (weights @ values).view(num_queries, num_heads, -1).to(query.dtype)


def _gather_batch(pool: Tensor, blocks: Tensor) -> Tensor:
    """Return each sequence's slots in order as [B, H_kv, n * P, D], float32."""
    gathered = pool.index_select(0, blocks.flatten())
    num_sequences, num_blocks = blocks.shape
    _, num_heads, block_size, dim = gathered.shape
    gathered = gathered.view(num_sequences, num_blocks, num_heads, block_size, dim).transpose(1, 2)
    return gathered.reshape(num_sequences, num_heads, num_blocks * block_size, dim).float()


def _gather(pool: Tensor, blocks: Tensor) -> Tensor:
    """Return the blocks' slots in order as [H_kv, n * P, D], float32."""
    gathered = pool.index_select(0, blocks)  # [n, H_kv, P, D]
    num_blocks, num_heads, block_size, dim = gathered.shape
    return gathered.transpose(0, 1).reshape(num_heads, num_blocks * block_size, dim).float()


def _hidden(first: int, position: int, last: int, args: AttentionArgs, device: torch.device) -> Tensor:
    """Return which keys [first, last) each query [position, last) does not see, [Q, S]."""
    queries = torch.arange(position, last, device=device)[:, None]
    keys = torch.arange(first, last, device=device)[None, :]
    hidden = keys > queries
    if args.window is not None:
        hidden |= keys <= queries - args.window
    if args.chunk is not None:
        hidden |= keys < queries - queries % args.chunk
    return hidden


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the weights of [H_kv, G, Q, S] scores; sinks [H] only add to the denominator."""
    if sinks is None:
        return scores.softmax(dim=-1)
    num_kv_heads, group, num_queries, _ = scores.shape
    extra = sinks.float().view(num_kv_heads, group, 1, 1).expand(-1, -1, num_queries, 1)
    return torch.cat([scores, extra], dim=-1).softmax(dim=-1)[..., :-1]
