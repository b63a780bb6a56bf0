"""Where kernels of attention write: single queries in parts, which are merged, or the result itself.

Dimensions: T tokens in the batch, H query heads, D head size of values, S parts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvchat.engine.kernels.merge_lse.triton import merge_lse
from kvchat.engine.kernels.paged_attention.args import StepTables


@dataclass(frozen=True, slots=True)
class Target:
    """Where a launch writes: the result [T, H, D], or parts [T * H, S, D] with their lse and counts."""

    out: Tensor
    lse: Tensor
    counts: Tensor
    most_parts: int
    is_split: bool


def whole(out: Tensor) -> Target:
    """Return the result as what a launch writes."""
    return Target(out, out, out, 1, False)


def in_parts(out: Tensor, tables: StepTables, most_parts: int, launch: Callable[[Target], None]) -> None:
    """Have the single queries of a step computed by one launch, in up to so many parts, and merge these."""
    if most_parts == 1:
        launch(whole(out))
        return
    num_tokens, num_heads, dim = out.shape
    device = out.device
    parts = torch.empty(num_tokens * num_heads, most_parts, dim, dtype=torch.float32, device=device)
    lse = torch.empty(num_tokens * num_heads, most_parts, dtype=torch.float32, device=device)
    counts = torch.zeros(num_tokens * num_heads, dtype=torch.int32, device=device)
    launch(Target(parts, lse, counts, most_parts, True))
    if len(tables.singles) == num_tokens:
        merge_lse(parts, lse, counts, out.view(num_tokens * num_heads, dim))
        return
    rows = tables.q_starts[tables.single_tiles()[:, 0].long()].long()
    chosen = (rows[:, None] * num_heads + torch.arange(num_heads, device=device)).flatten()
    out[rows] = merge_lse(parts[chosen], lse[chosen], counts[chosen]).view(-1, num_heads, dim).to(out.dtype)
