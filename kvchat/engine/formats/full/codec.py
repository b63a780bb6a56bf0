"""Exact blocks: copied as they are, and compared by their largest number."""

from collections.abc import Iterator
from math import inf, isfinite

import torch
from torch import Tensor

from kvchat.engine.formats.attention_metadata import LayerPool


class Codec:
    """Stored form of a layer's numbers: how blocks are made from exact ones, and what their bytes mean."""

    def copy_blocks(self, target: LayerPool, source: LayerPool, sources: Tensor, targets: Tensor) -> None:
        """Copy one layer's blocks from a pool of the exact format into this form."""
        there, here = source.keys.device, target.keys.device  # blocks of one of them may lie in host memory
        own, others = targets.to(here), sources.to(there)
        target.keys[own] = source.keys[others].to(here)
        target.values[own] = source.values[others].to(here)

    def numbers(self, stored: Tensor, region: str) -> Iterator[Tensor]:
        """Yield the numbers that a region of a block stands for.

        Args:
            stored: in the region's shape and type.
            region: its name; keys end in `.k`, values in `.v`.
        """
        yield stored

    def deviation(self, left: Tensor, right: Tensor) -> float:
        """Return how far numbers are from others; infinite where one is no number."""
        return relative(left, right)


def relative(left: Tensor, right: Tensor) -> float:
    """Return how far two tensors are apart, relative to the largest number of the second."""
    left, right = left.double(), right.double()
    return _finite((left - right).abs().max(), right.abs().max())


def relative_norm(left: Tensor, right: Tensor) -> float:
    """Return how far two tensors are apart as a whole, relative to the size of the second."""
    return _finite((left - right).norm(), right.norm())


def _finite(difference: Tensor, size: Tensor) -> float:
    found = float(difference) / max(float(size), 1e-30)
    return found if isfinite(found) else inf


def slots_of(blocks: Tensor, block_size: int) -> Tensor:
    """Return the slots of blocks [n] in their order [n * P]."""
    return (blocks[:, None] * block_size + torch.arange(block_size, device=blocks.device)).flatten()
