"""Move whole blocks, all layers of a group at once, in a torch operation per region: the definition.

A group's layers lie in one buffer, each layer's keys and values as a pool of their own. A block is one region
of each pool; outside the buffer it is one run of bytes, region after region. Dimensions: R regions of a
block, M blocks that move, W bytes of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

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

    def columns(self) -> Iterator[tuple[Tensor, slice]]:
        """Yield each region of all blocks [N or more, b] as a view, and where it lies in a block's run."""
        for start, size, end in zip(self.starts, self.sizes, accumulate(self.sizes), strict=True):
            num_blocks = (self.buffer.numel() - start) // size
            yield (
                self.buffer[start : start + num_blocks * size].view(num_blocks, size),
                slice(end - size, end),
            )


def copy_blocks(regions: BlockRegions, sources: Tensor, targets: Tensor) -> None:
    """Copy blocks within the buffer.

    Args:
        sources, targets: block ids [M], int64; no target is also a source, and no target comes twice.
    """
    for column, _ in regions.columns():
        column.index_copy_(0, targets, column.index_select(0, sources))


def gather_blocks(regions: BlockRegions, blocks: Tensor) -> Tensor:
    """Return the blocks as runs of bytes.

    Args:
        blocks: block ids [M], int64.

    Returns:
        [M, W], uint8.
    """
    runs = regions.buffer.new_empty(len(blocks), regions.block_bytes)
    for column, part in regions.columns():
        runs[:, part] = column.index_select(0, blocks)
    return runs


def scatter_blocks(regions: BlockRegions, blocks: Tensor, runs: Tensor) -> None:
    """Fill blocks from runs of bytes.

    Args:
        blocks: block ids [M], int64, none twice.
        runs: [M, W], uint8.
    """
    for column, part in regions.columns():
        column.index_copy_(0, blocks, runs[:, part])
