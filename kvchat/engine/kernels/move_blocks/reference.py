"""Move whole blocks, all layers of a group at once: the definition.

A group's layers lie in one buffer, each layer's keys and values as a pool of their own. A block is one region
of each pool; outside the buffer it is one run of bytes, region after region. Dimensions: R regions of a
block, M blocks that move, W bytes of a block.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class BlockRegions:
    """Where the regions of blocks lie: region r of block b begins at `starts[r] + b * sizes[r]`.

    Args:
        buffer: all pools of a group, one behind the other, uint8.
        starts: first byte of each region's pool, a multiple of 16.
        sizes: bytes of each region of one block, a multiple of 4.
    """

    buffer: Tensor
    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def block_bytes(self) -> int:
        return sum(self.sizes)

    @property
    def num_blocks(self) -> int:
        """How many blocks every pool has room for."""
        ends = (*sorted(self.starts)[1:], self.buffer.numel())
        places = sorted(zip(self.starts, self.sizes, strict=True))
        return min((end - start) // size for end, (start, size) in zip(ends, places, strict=True))

    def region(self, number: int, block: int) -> Tensor:
        """Return one region of one block as a view."""
        start = self.starts[number] + block * self.sizes[number]
        return self.buffer[start : start + self.sizes[number]]


def copy_blocks(regions: BlockRegions, sources: Tensor, targets: Tensor) -> None:
    """Copy blocks within the buffer.

    Args:
        sources, targets: block ids [M], int64; no target is also a source, and no target comes twice.
    """
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        for number in range(len(regions.sizes)):
            regions.region(number, target).copy_(regions.region(number, source))


def gather_blocks(regions: BlockRegions, blocks: Tensor) -> Tensor:
    """Return the blocks as runs of bytes.

    Args:
        blocks: block ids [M], int64.

    Returns:
        [M, W], uint8.
    """
    rows = [
        torch.cat([regions.region(number, block) for number in range(len(regions.sizes))])
        for block in blocks.tolist()
    ]
    return torch.stack(rows) if rows else regions.buffer.new_empty(0, regions.block_bytes)


def scatter_blocks(regions: BlockRegions, blocks: Tensor, runs: Tensor) -> None:
    """Fill blocks from runs of bytes.

    Args:
        blocks: block ids [M], int64, none twice.
        runs: [M, W], uint8.
    """
    for block, run in zip(blocks.tolist(), runs, strict=True):
        for number, part in enumerate(run.split(regions.sizes)):
            regions.region(number, block).copy_(part)
