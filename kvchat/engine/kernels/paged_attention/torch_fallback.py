"""Attention over block tables in a few torch operations per sequence; any device.

Prompts are computed by torch's own attention, which never holds all scores, in pieces of queries. Where that
knows too little, and for single queries, an online softmax walks over the blocks. Dimensions: T tokens in the
batch, Q queries of a piece, S visible tokens, H query heads, H_kv key-value heads, D head size, N blocks, P
block size.
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.online_softmax.torch_fallback import OnlineSoftmax, hidden_keys
from kvchat.engine.kernels.paged_attention.args import (
    AttentionArgs,
    KVPair,
    SequenceSpan,
    attended,
    heads_first,
)

PIECE_LEN = 512
"""Most queries whose scores exist at one time."""
PIECE_NUMBERS = 2**19
"""About as many numbers of keys or values are gathered at one time: more falls out of the cache, and what is
allocated beyond comes from the system page by page."""


def paged_attention(query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    out = query.new_empty(query.shape[0], query.shape[1], v_pool.shape[3])
    for span in attended(args.spans):
        for piece in pieces(span):
            rows = slice(piece.q_start, piece.q_end)
            out[rows] = _attend_piece(query[rows], KVPair(k_pool, v_pool), args, piece)
    return out


def pieces(span: SequenceSpan) -> Iterator[SequenceSpan]:
    """Yield a sequence's queries, as many at a time as may have scores."""
    for start in range(span.q_start, span.q_end, PIECE_LEN):
        position = span.position + start - span.q_start
        yield replace(span, q_start=start, q_end=min(start + PIECE_LEN, span.q_end), position=position)


def _attend_piece(query: Tensor, pools: KVPair, args: AttentionArgs, span: SequenceSpan) -> Tensor:
    """Return the attention of a span's queries [Q, H, D_k]."""
    queries = range(span.position, span.position + len(query))
    first, last = args.first_visible(span.position), queries.stop
    if len(query) > 1 and args.softcap is None and args.sinks is None:
        keys, values = seen(pools, span, first, last)
        visible = ~hidden_keys(range(first, last), queries, args, query.device)
        out = functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None].float(),
            keys[None],
            values[None],
            attn_mask=visible[None, None],
            scale=args.softmax_scale,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1).to(query.dtype)
    _, num_kv_heads, block_size, dim = pools.keys.shape
    softmax = OnlineSoftmax(query, num_kv_heads, args)
    size = max(1, PIECE_NUMBERS // (num_kv_heads * block_size * dim)) * block_size
    for start in range(first // block_size * block_size, last, size):
        part = range(max(first, start), min(start + size, last))
        keys, values = seen(pools, span, part.start, part.stop)
        hidden = hidden_keys(part, queries, args, query.device) if len(query) > 1 else None
        softmax.add(keys, values, hidden)
    return softmax.result().to(query.dtype)


def seen(pools: KVPair, span: SequenceSpan, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Return keys and values [H_kv, end - start, D], float32, of a sequence's positions [start, end)."""
    block_size = pools.keys.shape[2]
    first = start // block_size
    blocks = span.blocks[first - span.first_block : -(-end // block_size) - span.first_block]
    keys, values = (
        heads_first(pool.index_select(0, blocks))[:, start - first * block_size : end - first * block_size]
        for pool in pools
    )
    return keys.float(), values.float()
