"""Selection of keys and values to keep in a pruned stretch: the definition, in torch operations.

Scores say how much a token is wanted, head by head; the ones with the highest are kept, in their order. Only
keys are looked at, but for `observed_scores`, where the last queries of a prompt say what they attend to.
Dimensions: n tokens of the stretch, S tokens in sight, Q observing queries, H query heads, H_kv key-value
heads, G = H / H_kv, D head size, N blocks, P block size.

Source: SnapKV, arXiv 2404.14469; KeyDiff, arXiv 2504.15364; L2 norm, arXiv 2406.11430.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.paged_attention.args import AttentionArgs, heads_first

POOLED = 5
"""A token is wanted as much as the mean of so many around it: what stands beside an answer belongs to it."""
LEAST_NORM = 1e-12


def norm_scores(keys: Tensor) -> Tensor:
    """Return scores [H_kv, n] of keys [H_kv, n, D]: short keys get more attention than long ones."""
    return _marked(-keys.float().norm(dim=2), keys)


def difference_scores(keys: Tensor) -> Tensor:
    """Return scores [H_kv, n] of keys [H_kv, n, D]: those that are least like all others, by direction. A key
    of length zero is like none and unlike none.
    """
    finite = keys.isfinite().all(dim=2, keepdim=True)
    numbers = keys.float().masked_fill(~finite, 0)
    directions = numbers / numbers.norm(dim=2, keepdim=True).clamp_min(LEAST_NORM)
    mean = directions.mean(dim=1, keepdim=True)
    mean = mean / mean.norm(dim=2, keepdim=True).clamp_min(LEAST_NORM)
    return _marked(-(directions * mean).sum(dim=2), keys)


def _marked(scores: Tensor, keys: Tensor) -> Tensor:
    """Return scores [H_kv, n] in which keys that are no numbers stand out."""
    return scores.masked_fill(~keys.isfinite().all(dim=2), float("inf"))


def attention_weights(query: Tensor, keys: Tensor, args: AttentionArgs) -> Tensor:
    """Return the weights [H, Q, S] of queries [Q, H, D] on keys [H_kv, S, D], of which the last Q are the
    queries' own tokens.

    Args:
        args: scores; its spans, windows and chunks are not looked at.
    """
    num_queries, num_heads, _ = query.shape
    num_kv_heads, num_keys, _ = keys.shape
    wide = keys.float().repeat_interleave(num_heads // num_kv_heads, dim=0)
    scores = torch.bmm(query.float().transpose(0, 1), wide.transpose(1, 2)) * args.softmax_scale
    if args.softcap is not None:
        scores = args.softcap * torch.tanh(scores / args.softcap)
    at = torch.arange(num_keys - num_queries, num_keys, device=query.device)
    hidden = torch.arange(num_keys, device=query.device) > at[:, None]
    scores = scores.masked_fill(hidden, float("-inf"))
    if args.sinks is not None:
        sinks = args.sinks.float().view(-1, 1, 1).expand(-1, num_queries, 1)
        scores = torch.cat([scores, sinks], dim=2)
    return scores.softmax(dim=2)[:, :, :num_keys]


def observed_scores(weights: Tensor, num_kv_heads: int, start: int, end: int) -> Tensor:
    """Return scores [H_kv, n] of the tokens [start, end) from weights [H, Q, S]: the mean over the queries
    and heads that share a key, and over the tokens around each.

    At the borders of the stretch fewer tokens are around, and the mean is over those.
    """
    wanted = weights[:, :, start:end].mean(dim=1)
    wanted = wanted.unflatten(0, (num_kv_heads, -1)).mean(dim=1)  # [H_kv, n]
    return functional.avg_pool1d(
        wanted[:, None], POOLED, stride=1, padding=POOLED // 2, count_include_pad=False
    )[:, 0]


def with_neighbours(scores: Tensor, reach: int) -> Tensor:
    """Return scores [H_kv, n] by which a token is wanted as much as the most wanted one of those `reach`
    tokens before and behind it. A mean alone would thin out what one token is wanted for.
    """
    return functional.max_pool1d(scores[:, None], 2 * reach + 1, stride=1, padding=reach)[:, 0]


def select(scores: Tensor, num_kept: int) -> Tensor:
    """Return which tokens [H_kv, num_kept] have the highest of scores [H_kv, n], ascending; of equal ones the
    earlier.

    What has no finite score is kept before all others: nothing that is no number gets lost from sight.
    """
    assert 0 < num_kept <= scores.shape[1]
    ranked = torch.where(scores.isfinite(), scores, torch.full_like(scores, float("inf")))
    order = ranked.argsort(dim=1, descending=True, stable=True)
    return order[:, :num_kept].sort(dim=1).values


def gather_kept(pool: Tensor, sources: Tensor, targets: Tensor, kept: Tensor) -> None:
    """Write what is kept of the blocks `sources` [n / P] into the blocks `targets` of a pool [N, H_kv, P, D].

    Args:
        kept: tokens of the stretch, for each head [H_kv, m * P] where `targets` has m blocks.
    """
    rows = heads_first(pool[sources])
    dim = rows.shape[2]
    found = rows.gather(1, kept[:, :, None].expand(-1, -1, dim))
    pool[targets] = found.unflatten(1, (len(targets), pool.shape[2])).transpose(0, 1)
