"""Visible range of a layer's queries, read off the mask that the model itself would use."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class VisibleRange:
    """Tokens that a query sees: all before it, the last `window`, or those of its `chunk`.

    `problem` says why the mask is none of these.
    """

    window: int | None = None
    chunk: int | None = None
    problem: str | None = None


def reach_of(mask: Tensor, start: int, chunk_len: int | None) -> VisibleRange:
    """Return what the mask [1, H or 1, T, start + T] of queries at [start, start + T) lets them see.

    Args:
        chunk_len: length of fixed chunks if the config speaks of any.
    """
    num_queries = mask.shape[2]
    if mask.shape[3] != start + num_queries:
        return VisibleRange(problem=f"masks {mask.shape[3]} tokens where there are {start + num_queries}")
    visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    if mask.dtype != torch.bool and bool((mask[visible] != 0).any()):
        return VisibleRange(problem="adds a bias to its scores")
    if bool((visible != visible[:, :1]).any()):
        return VisibleRange(problem="masks each head in its own way")
    firsts = []
    for row, position in zip(visible[0, 0], range(start, start + num_queries), strict=True):
        seen = row.nonzero()[:, 0].tolist()
        if not seen or seen[-1] != position or len(seen) != position - seen[0] + 1:
            return VisibleRange(problem="sees something other than the tokens directly before")
        firsts.append(seen[0])
    return _reach(firsts, start, chunk_len)


def _reach(firsts: list[int], start: int, chunk_len: int | None) -> VisibleRange:
    """Return the reach of queries at [start, ...) whose first visible tokens are `firsts`."""
    if not any(firsts):
        return VisibleRange()
    positions = range(start, start + len(firsts))
    window = start - firsts[0] + 1
    if firsts == [position - window + 1 for position in positions]:
        return VisibleRange(window=window)
    if chunk_len and firsts == [position - position % chunk_len for position in positions]:
        return VisibleRange(chunk=chunk_len)
    return VisibleRange(problem="sees neither a window nor a chunk")
