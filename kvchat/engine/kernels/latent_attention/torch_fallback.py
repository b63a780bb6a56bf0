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
from kvchat.engine.kernels.paged_attention.args import SequenceSpan

FEWEST_TO_EXPAND = 192
"""From here on expanding costs less: 2 R (d_n + d_v) per key and head once, against 2 (2 R - d_n - d_v) per
query, key and head; 171 queries for R = 512 and d_n = d_v = 128."""
MOST_SCORES = 2**24
"""Most scores that exist at one time, over all heads."""
MOST_ROWS = 2048
"""Longest slice of the context."""

Slice = tuple[Tensor, Tensor]
"""Keys [B, s, D] and values [B, s, D_v] of a slice."""
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
    num_queries, num_heads, _ = query.shape
    rank = args.k_up.shape[2]

    def latents(start: int, end: int) -> Slice:
        rows = _rows(pool, span, start, end, args.record).float()[None]
        return rows, rows[..., :rank]

    packed = query.float().view(1, num_queries * num_heads, -1)
    return _attend(packed, num_heads, args, span, latents).view(num_queries, num_heads, rank)


def _attend_expanded(query: Tensor, pool: Tensor, args: LatentArgs, span: SequenceSpan) -> Tensor:
    """Return the attention [Q, H, d_v] of one span's queries [Q, H, d_n + d_r]."""
    return _attend(
        query.float().transpose(0, 1),
        1,
        args,
        span,
        lambda start, end: _expand(_rows(pool, span, start, end, args.record), args),
    ).transpose(0, 1)


def _attend(
    query: Tensor, repeats: int, args: LatentArgs, span: SequenceSpan, load: Callable[[int, int], Slice]
) -> Tensor:
    """Return attention [B, Q * repeats, D_v] over all slices of a span's context.

    Args:
        query: [B, Q * repeats, D]; `repeats` rows in turn stand at one position.
        load: first and last position of a slice → its keys and values.
    """
    batch, num_rows, _ = query.shape
    num_queries = num_rows // repeats
    num_visible = span.position + num_queries
    slice_len = max(1, min(MOST_ROWS, MOST_SCORES // (batch * num_rows)))
    top = query.new_full((batch, num_rows, 1), float("-inf"))
    total = query.new_zeros(batch, num_rows, 1)
    out: Tensor | None = None
    for start in range(0, num_visible, slice_len):
        end = min(start + slice_len, num_visible)
        keys, values = load(start, end)
        scores = torch.bmm(query, keys.transpose(1, 2)).mul_(args.softmax_scale)  # [B, Q * repeats, s]
        if end > span.position + 1:
            later = _later(span.position, num_queries, start, end, query.device)
            scores.masked_fill_(later.repeat_interleave(repeats, dim=0), float("-inf"))
        new_top = torch.maximum(top, scores.amax(dim=2, keepdim=True))
        weights = scores.sub_(new_top).exp_()
        decay = torch.exp(top - new_top)
        total = total * decay + weights.sum(dim=2, keepdim=True)
        out = torch.bmm(weights, values) if out is None else torch.baddbmm(out * decay, weights, values)
        top = new_top
    assert out is not None, "a query sees itself"
    return out / total


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


def _later(position: int, num_queries: int, start: int, end: int, device: torch.device) -> Tensor:
    """Return which keys [start, end) come after each query from `position` on, [Q, end - start]."""
    queries = torch.arange(position, position + num_queries, device=device)[:, None]
    return torch.arange(start, end, device=device)[None, :] > queries
