"""Merge attention over parts of the keys into attention over all of them: the definition.

Source: FlashDecoding. Dimensions: R rows (a query and a head each), S parts, D head size.
"""

import torch
from torch import Tensor


def merge_lse(parts: Tensor, lse: Tensor, num_parts: Tensor) -> Tensor:
    """Return the attention over all parts.

    Args:
        parts: attention of each row over each part alone [R, S, D], float32.
        lse: natural log-sum-exp of the scores of each part [R, S], float32; -inf: the part has no key.
        num_parts: how many parts each row has, the first ones [R], int32; the rest is never read.

    Returns:
        [R, D] float32; zeros for a row without any key.
    """
    absent = torch.arange(lse.shape[1], device=lse.device) >= num_parts[:, None]
    lse = lse.masked_fill(absent, float("-inf"))
    top = lse.amax(dim=1, keepdim=True)
    weights = torch.exp(lse - top.masked_fill(top.isinf(), 0))
    total = weights.sum(dim=1, keepdim=True)
    weights = weights / total.masked_fill(total == 0, 1)
    return (weights[:, :, None] * parts.masked_fill(absent[:, :, None], 0)).sum(dim=1)
