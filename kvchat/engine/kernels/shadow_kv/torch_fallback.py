"""The steps of a shadowed context in torch operations: no copies in float32 of what a kernel can read, and no
questions to a device.

Dimensions: C chunks, Q queries, H query heads, H_kv key-value heads, G = H / H_kv, D and D_v sizes of a head,
n tokens in sight, P tokens of a block, k slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from kvchat.engine.kernels import paged_attention as paged
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, SequenceSpan
from kvchat.engine.kernels.shadow_kv.args import Change

PIECE_LEN = 512
"""Keys that are copied in float32 at a time: they are multiplied before they fall out of the cache."""
BLOCK_SIZE = 64
"""In blocks of so many tokens what is in sight is handed to a kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleChunks:
    """Keys or values of all that a step sees.

    Args:
        blocks: [H_kv, N * P, D], of any content behind the first `num_tokens`.
    """

    blocks: Tensor
    num_tokens: int

    @classmethod
    def of(cls, parts: Sequence[Tensor]) -> "VisibleChunks":
        """Return a copy of parts [H_kv, n, D], one behind the other."""
        num_tokens = sum(part.shape[1] for part in parts)
        first = parts[0]
        room = -(-num_tokens // BLOCK_SIZE) * BLOCK_SIZE
        blocks = first.new_empty(len(first), room, first.shape[2])
        start = 0
        for part in parts:
            blocks[:, start : start + part.shape[1]] = part
            start += part.shape[1]
        return cls(blocks=blocks, num_tokens=num_tokens)

    @property
    def pool(self) -> Tensor:
        """[N, H_kv, P, D]."""
        return self.blocks.unflatten(1, (-1, BLOCK_SIZE)).transpose(0, 1)


def products(query: Tensor, keys: Tensor) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    num_queries, num_kv_heads = len(query), keys.shape[1]
    rows = query.float().unflatten(1, (num_kv_heads, -1)).transpose(0, 1).flatten(1, 2)  # [H_kv, Q * G, D]
    out = rows.new_empty(num_kv_heads, rows.shape[1], len(keys))
    for start in range(0, len(keys), PIECE_LEN):
        piece = keys[start : start + PIECE_LEN].float().permute(1, 2, 0)
        out[..., start : start + PIECE_LEN] = torch.matmul(rows, piece)
    return out.unflatten(1, (num_queries, -1)).transpose(0, 1)


def chosen(scores: Tensor, num_chunks: int, always: Tensor) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    if not num_chunks:
        return always.clone()
    # A score that is no number is the highest one, as it is for the reference.
    others = scores.masked_fill(always, float("-inf")).nan_to_num(float("inf"), float("inf"), float("-inf"))
    least = others.topk(num_chunks, dim=1).values[:, -1:]
    above, alike = others > least, others == least
    num_alike = num_chunks - above.sum(dim=1, keepdim=True)
    return always | above | (alike & (alike.cumsum(dim=1) <= num_alike))


def picked(wanted: Tensor, num_chunks: int) -> Tensor:
    """Return the chunks [H_kv, num_chunks], ascending, of which a head wants so many [H_kv, C], of bool."""
    numbers = torch.arange(wanted.shape[1], device=wanted.device)
    behind = torch.where(wanted, numbers, wanted.shape[1])
    return behind.topk(num_chunks, dim=1, largest=False, sorted=True).values


def exchange(held: Tensor, wanted: Tensor, num_chunks: int) -> Change:
    """Return what the reference returns; see there for arguments.

    Args:
        num_chunks: that there are.
    """

    def among(chunks: Tensor, others: Tensor) -> Tensor:
        """Whether each of `chunks` [H_kv, k] is one of `others`; what is in an empty slot is in none."""
        there = torch.zeros(len(chunks), num_chunks + 1, dtype=torch.bool, device=chunks.device)
        there.scatter_(1, others + 1, value=True)
        return there.gather(1, chunks + 1) & (chunks >= 0)

    stays, is_new = among(held, wanted), ~among(wanted, held)
    new = wanted.gather(1, (~is_new).to(torch.int8).argsort(dim=1, stable=True))
    places = (~stays).cumsum(dim=1) - 1
    slots = torch.where(stays, held, new.gather(1, places.clamp_min(0)))
    return Change(slots=slots, is_missing=~stays)


@lru_cache(maxsize=64)
def _whole(
    num_queries: int, num_tokens: int, num_blocks: int, softmax_scale: float, device: torch.device
) -> AttentionArgs:
    """Return how the last tokens of a sequence see all of it, which lies in its blocks in order. The same for
    all layers of a step.
    """
    blocks = torch.arange(num_blocks, device=device)
    spans = (SequenceSpan(0, num_queries, num_tokens - num_queries, 0, blocks),)
    return AttentionArgs(spans, softmax_scale=softmax_scale, prepared=paged.prepare(spans, lambda _: 0))


def gathered_attention(
    query: Tensor, keys: VisibleChunks, values: VisibleChunks, softmax_scale: float
) -> Tensor:
    """Return what the reference returns, in the type of the queries; see there for arguments."""
    k_pool = keys.pool
    args = _whole(len(query), keys.num_tokens, len(k_pool), softmax_scale, query.device)
    return paged.paged_attention(query, k_pool, values.pool, args)
