"""Latent attention in a few torch operations per sequence; any device.

Few queries attend in the latent space: they are projected into it, and what they gather is projected out of
it, so no key and no value exists. Many queries share the expansion of keys and values. Which of the two
follows from the number of queries alone. Both walk over slices of the context with an online softmax, so what
a step needs beside the pool does not grow with the context. Dimensions: T tokens in the batch, Q queries of
a span, S visible tokens, s those of a slice, H query heads, R latent rank, d_n size of keys without rope, d_r
of the rope key, d_v of values, N blocks, P block size.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.latent_attention.args import LatentArgs
from kvchat.engine.kernels.latent_record.torch_fallback import unpack
from kvchat.engine.kernels.online_softmax.torch_fallback import OnlineSoftmax, hidden_keys
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, SequenceSpan

FEWEST_TO_EXPAND = 192
"""From here on expanding costs less: 2 R (d_n + d_v) per key and head once, against 2 (2 R - d_n - d_v) per
query, key and head; 171 queries for R = 512 and d_n = d_v = 128."""
MOST_SCORES = 2**24
"""Most scores that exist at one time, over all heads."""
MOST_ROWS = 2048
"""Longest slice of the context."""

Slice = tuple[Tensor, Tensor]
"""Keys [H_kv, s, D] and values [H_kv, s, D_v] of a slice: H_kv is 1, or H where they are expanded."""
MeanLatents = Callable[[Tensor, Tensor, LatentArgs, Sequence[SequenceSpan]], Tensor]
"""Computes what `mean_latents` does."""


def latent_attention(
    query: Tensor, pool: Tensor, args: LatentArgs, attend: MeanLatents | None = None
) -> Tensor:
    """Return what the reference returns; see there for arguments.

    Args:
        attend: another way to compute `mean_latents`.
    """
    out = query.new_empty(query.shape[0], query.shape[1], args.v_up.shape[1])
    few = [span for span in args.spans if span.q_end - span.q_start < FEWEST_TO_EXPAND]
    if few:
        rows = torch.cat([torch.arange(span.q_start, span.q_end, device=query.device) for span in few])
        attend = attend or mean_latents
        queries = query if len(rows) == len(query) else query[rows]
        out[rows] = in_latent_space(queries, args, lambda absorbed: attend(absorbed, pool, args, few))
    for span in args.spans:
        if span.q_end - span.q_start >= FEWEST_TO_EXPAND:
            out[span.q_start : span.q_end] = _attend_expanded(
                query[span.q_start : span.q_end], pool, args, span
            ).to(out.dtype)
    return out


def in_latent_space(query: Tensor, args: LatentArgs, mean: Callable[[Tensor], Tensor]) -> Tensor:
    """Return attention of queries [T, H, d_n + d_r] as [T, H, d_v].

    Args:
        mean: queries of the latent space [T, H, R + d_r] → mean latents [T, H, R].
    """
    found = mean(_absorb(query, args)).to(query.dtype)
    return torch.bmm(found.transpose(0, 1), args.v_up.transpose(1, 2)).transpose(0, 1)


def _absorb(query: Tensor, args: LatentArgs) -> Tensor:
    """Return queries [T, H, d_n + d_r] as queries of the latent space [T, H, R + d_r]."""
    dim_n = args.k_up.shape[1]
    in_latent = torch.bmm(query[..., :dim_n].transpose(0, 1), args.k_up).transpose(0, 1)
    return torch.cat([in_latent, query[..., dim_n:]], dim=2)


def mean_latents(query: Tensor, pool: Tensor, args: LatentArgs, spans: Sequence[SequenceSpan]) -> Tensor:
    """Return what queries of the latent space attend to, span after span.

    Args:
        query: [T', H, R + d_r]; the rows of `spans` in turn, whatever their `q_start`.

    Returns:
        Mean latents [T', H, R], float32.
    """
    lengths = [span.q_end - span.q_start for span in spans]
    parts = zip(query.split(lengths), spans, strict=True)
    return torch.cat([_attend_absorbed(part, pool, args, span) for part, span in parts])


def _attend_absorbed(query: Tensor, pool: Tensor, args: LatentArgs, span: SequenceSpan) -> Tensor:
    """Return the mean latents [Q, H, R] of one span's queries of the latent space [Q, H, R + d_r]."""

    def latents(start: int, end: int) -> Slice:
        rows = _rows(pool, span, start, end, args.record).float()[None]
        return rows, rows[..., : args.k_up.shape[2]]

    return _attend(query, 1, args, span, latents)


def _attend_expanded(query: Tensor, pool: Tensor, args: LatentArgs, span: SequenceSpan) -> Tensor:
    """Return the attention [Q, H, d_v] of one span's queries [Q, H, d_n + d_r]."""

    def expanded(start: int, end: int) -> Slice:
        return _expand(_rows(pool, span, start, end, args.record), args)

    return _attend(query, query.shape[1], args, span, expanded)


def _attend(
    query: Tensor, num_kv_heads: int, args: LatentArgs, span: SequenceSpan, load: Callable[[int, int], Slice]
) -> Tensor:
    """Return attention [Q, H, D_v], float32, over all slices of a span's context.

    Args:
        query: [Q, H, D].
        load: first and last position of a slice → its keys and values.
    """
    scores = AttentionArgs(spans=(), softmax_scale=args.softmax_scale)
    softmax = OnlineSoftmax(query, num_kv_heads, scores)
    queries = range(span.position, span.position + len(query))
    slice_len = max(1, min(MOST_ROWS, MOST_SCORES // query[..., 0].numel()))
    for start in range(0, queries.stop, slice_len):
        keys = range(start, min(start + slice_len, queries.stop))
        is_cut = keys.stop > span.position + 1
        hidden = hidden_keys(keys, queries, scores, query.device) if is_cut else None
        softmax.add(*load(keys.start, keys.stop), hidden)
    return softmax.result()


def _expand(rows: Tensor, args: LatentArgs) -> Slice:
    """Return keys [H, s, d_n + d_r] and values [H, s, d_v] of rows [s, R + d_r], in float32."""
    num_heads, _, rank = args.k_up.shape
    latents, rope_keys = rows[:, :rank].to(args.k_up.dtype), rows[:, rank:].float()
    keys = torch.matmul(latents, args.k_up.transpose(1, 2)).float()
    values = torch.matmul(latents, args.v_up.transpose(1, 2)).float()
    return torch.cat([keys, rope_keys.expand(num_heads, -1, -1)], dim=2), values


def _rows(pool: Tensor, span: SequenceSpan, start: int, end: int, record: Fp8Record | None) -> Tensor:
    """Return the rows at positions [start, end) of a sequence, [end - start, R + d_r]; records are read here,
    a slice at a time.
    """
    block_size = pool.shape[2]
    first, last = start // block_size, -(-end // block_size)
    blocks = span.blocks[first - span.first_block : last - span.first_block]
    rows = pool.index_select(0, blocks).view(-1, pool.shape[3])
    rows = rows[start - first * block_size : end - first * block_size]
    return rows if record is None else unpack(rows, record)
