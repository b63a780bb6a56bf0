"""Attention over block tables in a few torch operations per prompt or batch of decodes; any device.

Whatever is gathered stays small enough for the processor's cache: single queries walk through their blocks
piece by piece, and prompts are computed by torch's own attention, which never holds all scores, or where that
knows too little in pieces of queries. Dimensions: T tokens in the batch, Q queries of a piece, B sequences
that decode together, n blocks of the longest of them, M blocks of all, C blocks of a piece, S visible tokens,
H query heads, H_kv key-value heads, G = H / H_kv, D head size, N blocks, P block size.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.paged_attention.args import (
    AttentionArgs,
    DecodeBatch,
    Decodes,
    SequenceSpan,
    heads_first,
)
from kvchat.engine.kernels.paged_attention.decode_batches import batch_decodes

PIECE_LEN = 512
"""Most queries whose scores exist at one time."""
PIECE_BYTES = 2 * 2**20
"""About as much of keys or values is gathered at one time for single queries: more falls out of the cache,
and what is allocated beyond comes from the system page by page."""


def paged_attention(query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    out = query.new_empty(query.shape[0], query.shape[1], v_pool.shape[3])
    decodes = args.prepared
    if not isinstance(decodes, Decodes):
        decodes = batch_decodes(args.spans, args.first_visible, k_pool.shape[2])
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
    """Return the attention of a prompt's queries [Q, H, D_k], the first of them at `position`."""
    block_size = k_pool.shape[2]
    last = position + len(query)
    first = args.first_visible(position)
    first_block = first // block_size
    blocks = span.blocks[first_block - span.first_block : -(-last // block_size) - span.first_block]
    start, end = first - first_block * block_size, last - first_block * block_size
    keys = heads_first(k_pool.index_select(0, blocks)).float()[:, start:end]  # [H_kv, S, D_k]
    values = heads_first(v_pool.index_select(0, blocks)).float()[:, start:end]  # [H_kv, S, D_v]
    hidden = _hidden(first, position, last, args, query.device) if len(query) > 1 else None
    if hidden is not None and args.softcap is None and args.sinks is None:
        out = functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None].float(),
            keys[None],
            values[None],
            attn_mask=~hidden[None, None],
            scale=args.softmax_scale,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1).to(query.dtype)
    return _attend_scores(query, keys, values, hidden, args)


def _attend_scores(
    query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None, args: AttentionArgs
) -> Tensor:
    """Return the attention of queries [Q, H, D_k] over keys [H_kv, S, D_k] where scores are changed, or get
    company, before the softmax.
    """
    num_queries, num_heads, _ = query.shape
    num_kv_heads, num_keys, _ = keys.shape
    group = num_heads // num_kv_heads
    packed = query.view(num_queries, num_kv_heads, group, -1).permute(1, 2, 0, 3)  # [H_kv, G, Q, D_k]
    packed = packed.reshape(num_kv_heads, group * num_queries, -1).float()
    scores = torch.bmm(packed, keys.transpose(1, 2)).mul_(args.softmax_scale)
    scores = scores.view(num_kv_heads, group, num_queries, num_keys)
    if args.softcap is not None:
        scores = scores.div_(args.softcap).tanh_().mul_(args.softcap)
    if hidden is not None:
        scores.masked_fill_(hidden, float("-inf"))
    sinks = None if args.sinks is None else args.sinks.view(num_kv_heads, -1, 1, 1)
    weights = _softmax(scores, sinks).view(num_kv_heads, group * num_queries, num_keys)
    out = torch.bmm(weights, values).view(num_kv_heads, group, num_queries, -1)
    return out.permute(2, 0, 1, 3).reshape(num_queries, num_heads, -1).to(query.dtype)


def _attend_batch(
    query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs, batch: DecodeBatch
) -> Tensor:
    """Return the attention of single queries [B, H, D_k], each over its own sequence."""
    num_queries, num_heads, _ = query.shape
    num_kv_heads, block_size = k_pool.shape[1], k_pool.shape[2]
    shape = (num_queries, num_kv_heads, num_heads // num_kv_heads, batch.num_places * block_size)
    scores = _batch_scores(query.view(*shape[:3], -1), k_pool, args, batch)  # [B, n, H_kv, G, P]
    sinks = None if args.sinks is None else args.sinks.view(num_kv_heads, -1, 1)
    weights = _softmax(scores.permute(0, 2, 3, 1, 4).reshape(shape), sinks)
    weights = weights.view(*shape[:3], batch.num_places, block_size).permute(0, 3, 1, 2, 4)
    return _batch_values(weights, v_pool, batch).view(num_queries, num_heads, -1).to(query.dtype)


def _batch_scores(query: Tensor, k_pool: Tensor, args: AttentionArgs, batch: DecodeBatch) -> Tensor:
    """Return the scores of queries [B, H_kv, G, D_k], -inf where nothing is visible [B, n, H_kv, G, P]."""
    num_queries, num_kv_heads, group, dim = query.shape
    block_size = k_pool.shape[2]
    query = query.float() * args.softmax_scale
    pieces = []
    for part in _pieces(k_pool, batch):
        keys = k_pool.index_select(0, batch.blocks[part]).float().view(-1, block_size, dim)
        own = query.index_select(0, batch.owners[part]).view(-1, group, dim)  # [C * H_kv, G, D_k]
        pieces.append(torch.bmm(own, keys.transpose(1, 2)))
    listed = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    listed = listed.view(-1, num_kv_heads, group, block_size)  # [M, H_kv, G, P]
    if args.softcap is not None:
        listed = listed.div_(args.softcap).tanh_().mul_(args.softcap)
    listed[len(listed) - len(batch.hidden) :].masked_fill_(batch.hidden[:, None, None], float("-inf"))
    size = num_queries * batch.num_places
    scores = listed.new_full((size, num_kv_heads, group, block_size), float("-inf"))
    scores.index_copy_(0, batch.places, listed)
    return scores.view(num_queries, batch.num_places, num_kv_heads, group, block_size)


def _batch_values(weights: Tensor, v_pool: Tensor, batch: DecodeBatch) -> Tensor:
    """Return the sums of values by weights [B, n, H_kv, G, P] as [B, H_kv, G, D_v]."""
    num_queries, _, num_kv_heads, group, block_size = weights.shape
    dim = v_pool.shape[3]
    listed = weights.reshape(-1, num_kv_heads, group, block_size).index_select(0, batch.places)
    out = listed.new_zeros(num_queries, num_kv_heads, group, dim)
    num_whole = len(batch.blocks) - len(batch.hidden)
    for part in _pieces(v_pool, batch):
        values = v_pool.index_select(0, batch.blocks[part]).float()  # [C, H_kv, P, D_v]
        # What nobody wrote may be anything, NaN too, and nothing times NaN is NaN.
        hidden = batch.hidden[max(0, part.start - num_whole) : max(0, part.stop - num_whole)]
        values[len(values) - len(hidden) :].masked_fill_(hidden[:, None, :, None], 0)
        sums = torch.bmm(listed[part].view(-1, group, block_size), values.view(-1, block_size, dim))
        out.index_add_(0, batch.owners[part], sums.view(-1, num_kv_heads, group, dim))
    return out


def _pieces(pool: Tensor, batch: DecodeBatch) -> Iterator[slice]:
    """Yield pieces of a batch's list of blocks that are gathered at one time."""
    block_bytes = 4 * pool[0].numel()
    size = max(1, PIECE_BYTES // block_bytes)
    for start in range(0, len(batch.blocks), size):
        yield slice(start, min(start + size, len(batch.blocks)))


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
    """Return the weights of scores [..., S]; sinks [..., 1] only add to the denominator."""
    if sinks is None:
        return scores.softmax(dim=-1)
    extra = sinks.float().expand(*scores.shape[:-1], 1)
    return torch.cat([scores, extra], dim=-1).softmax(dim=-1)[..., :-1]
