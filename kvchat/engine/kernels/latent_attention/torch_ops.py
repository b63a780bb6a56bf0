"""Latent attention in a few torch operations per sequence; any device.

Few queries attend in the latent space: they are projected into it, and what they gather is projected out of
it, so no key and no value exists. Many queries share the expansion of keys and values, slice by slice, merged
by an online softmax. Which of the two follows from the number of queries alone. Dimensions: T tokens in the
batch, Q queries of a span, S visible tokens, H query heads, R latent rank, d_n size of keys without rope, d_r
of the rope key, d_v of values, N blocks, P block size.
"""

import torch
from torch import Tensor

from kvchat.engine.kernels.latent_attention.args import LatentArgs
from kvchat.engine.kernels.paged_attention.args import SequenceSpan

FEWEST_TO_EXPAND = 192
"""From here on expanding costs less: 2 R (d_n + d_v) per key and head once, against 2 (2 R - d_n - d_v) per
query, key and head; 171 queries for R = 512 and d_n = d_v = 128."""
MOST_SCORES = 2**24
"""Most scores that exist at one time, over all heads."""
PIECE_LEN = 32
"""Most queries that attend in the latent space at one time."""


def latent_attention(query: Tensor, pool: Tensor, args: LatentArgs) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    dim_n = args.k_up.shape[1]
    few = [span for span in args.spans if span.q_end - span.q_start < FEWEST_TO_EXPAND]
    out = query.new_empty(query.shape[0], query.shape[1], args.v_up.shape[1])
    if few:
        rows = torch.cat([torch.arange(span.q_start, span.q_end, device=query.device) for span in few])
        chosen = query if len(rows) == len(query) else query[rows]
        in_latent = torch.bmm(chosen[..., :dim_n].transpose(0, 1), args.k_up).transpose(0, 1)  # [T', H, R]
        absorbed = torch.cat([in_latent, chosen[..., dim_n:]], dim=2)
        gathered = _attend_few(absorbed, pool, args, few)
        out[rows] = torch.bmm(gathered.transpose(0, 1), args.v_up.transpose(1, 2)).transpose(0, 1)
    for span in args.spans:
        if span.q_end - span.q_start >= FEWEST_TO_EXPAND:
            out[span.q_start : span.q_end] = _attend_many(query[span.q_start : span.q_end], pool, args, span)
    return out


def _attend_few(query: Tensor, pool: Tensor, args: LatentArgs, spans: list[SequenceSpan]) -> Tensor:
    """Return the mean latents [T', H, R] for queries of the latent space [T', H, R + d_r], span by span."""
    rank = args.k_up.shape[2]
    out = query.new_empty(query.shape[0], query.shape[1], rank)
    row = 0
    for span in spans:
        latents = _rows(pool, span, 0, span.position + span.q_end - span.q_start).float()  # [S, R + d_r]
        for start in range(0, span.q_end - span.q_start, PIECE_LEN):
            end = min(start + PIECE_LEN, span.q_end - span.q_start)
            num_visible = span.position + end
            piece = query[row + start : row + end].float()  # [Q, H, R + d_r]
            scores = (piece.flatten(0, 1) @ latents[:num_visible].T).mul_(args.softmax_scale)
            scores = scores.view(end - start, -1, num_visible)
            if end - start > 1:
                later = _later(span.position + start, end - start, 0, num_visible, query.device)
                scores.masked_fill_(later[:, None], float("-inf"))
            weights = scores.softmax(dim=2).flatten(0, 1)
            mean = weights @ latents[:num_visible, :rank]
            out[row + start : row + end] = mean.view(end - start, -1, rank).to(out.dtype)
        row += span.q_end - span.q_start
    return out


def _attend_many(query: Tensor, pool: Tensor, args: LatentArgs, span: SequenceSpan) -> Tensor:
    """Return the attention of one span's queries [Q, H, d_n + d_r] over expanded slices of its keys."""
    num_queries, num_heads, _ = query.shape
    queries = query.float().transpose(0, 1)  # [H, Q, d_n + d_r]
    top = queries.new_full((num_heads, num_queries, 1), float("-inf"))
    total = queries.new_zeros(num_heads, num_queries, 1)
    out = queries.new_zeros(num_heads, num_queries, args.v_up.shape[1])
    num_visible = span.position + num_queries
    slice_len = max(pool.shape[2], MOST_SCORES // (num_heads * num_queries))
    for start in range(0, num_visible, slice_len):
        end = min(start + slice_len, num_visible)
        keys, values = _expand(_rows(pool, span, start, end), args)
        scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(args.softmax_scale)  # [H, Q, slice]
        if end > span.position:
            scores.masked_fill_(_later(span.position, num_queries, start, end, query.device), float("-inf"))
        new_top = torch.maximum(top, scores.amax(dim=2, keepdim=True))
        weights = scores.sub_(new_top).exp_()
        decay = torch.exp(top - new_top)
        total = total * decay + weights.sum(dim=2, keepdim=True)
        out = torch.baddbmm(out * decay, weights, values)
        top = new_top
    return (out / total).transpose(0, 1).to(query.dtype)


def _expand(rows: Tensor, args: LatentArgs) -> tuple[Tensor, Tensor]:
    """Return keys [H, s, d_n + d_r] and values [H, s, d_v] of rows [s, R + d_r], in float32."""
    num_heads, _, rank = args.k_up.shape
    latents, rope_keys = rows[:, :rank], rows[:, rank:].float()
    keys = torch.matmul(latents, args.k_up.transpose(1, 2)).float()
    values = torch.matmul(latents, args.v_up.transpose(1, 2)).float()
    return torch.cat([keys, rope_keys.expand(num_heads, -1, -1)], dim=2), values


def _rows(pool: Tensor, span: SequenceSpan, start: int, end: int) -> Tensor:
    """Return the rows at positions [start, end) of a sequence, [end - start, R + d_r]."""
    block_size = pool.shape[2]
    first, last = start // block_size, -(-end // block_size)
    blocks = span.blocks[first - span.first_block : last - span.first_block]
    rows = pool.index_select(0, blocks).view(-1, pool.shape[3])
    return rows[start - first * block_size : end - first * block_size]


def _later(position: int, num_queries: int, start: int, end: int, device: torch.device) -> Tensor:
    """Return which keys [start, end) come after each query from `position` on, [Q, end - start]."""
    queries = torch.arange(position, position + num_queries, device=device)[:, None]
    return torch.arange(start, end, device=device)[None, :] > queries
