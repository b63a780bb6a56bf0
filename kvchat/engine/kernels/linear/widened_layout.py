"""A weight of 16 bits in the order in which few rows and many are multiplied by it fastest, in float32.

Pairs of inputs lie side by side, 48 outputs of them one after the other: one vector holds sixteen outputs
twice, is widened by a shift and a mask, and serves eight rows whose sums stay in registers. Libraries lay
bfloat16 out like this for processors that multiply it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 48
"""Outputs that lie together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InterleavedWeight:
    """[N, K] as `numbers` [N / 48, K / 2, 48, 2]; what is not of the weight is zero."""

    numbers: Tensor
    shape: torch.Size

    @property
    def dtype(self) -> torch.dtype:
        return self.numbers.dtype

    def to_dense(self) -> Tensor:
        """Return the very same numbers [N, K]."""
        num_outputs, num_inputs = self.shape
        return self.numbers.transpose(1, 2).flatten(0, 1).flatten(1)[:num_outputs, :num_inputs].contiguous()


def pair(weight: Tensor) -> InterleavedWeight:
    """Lay out a weight [N, K]: the definition."""
    num_outputs, num_inputs = weight.shape
    padded = functional.pad(weight, (0, num_inputs % 2, 0, -num_outputs % BLOCK))
    numbers = padded.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, 2)).transpose(1, 2).contiguous()
    return InterleavedWeight(numbers=numbers, shape=weight.shape)
