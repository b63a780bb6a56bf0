"""Move whole blocks in a torch operation per region; any device, and any size of regions.

Dimensions: R regions of a block, M blocks that move, W bytes of a block.
"""

from collections.abc import Iterator
from itertools import accumulate

from torch import Tensor

from kvchat.engine.kernels.move_blocks.reference import BlockRegions


def copy_blocks(regions: BlockRegions, sources: Tensor, targets: Tensor) -> None:
    """Do what the reference does; see there for arguments."""
    for column, _ in _columns(regions):
        column.index_copy_(0, targets, column.index_select(0, sources))


def gather_blocks(regions: BlockRegions, blocks: Tensor) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    runs = regions.buffer.new_empty(len(blocks), regions.block_bytes)
    for column, part in _columns(regions):
        runs[:, part] = column.index_select(0, blocks)
    return runs


def scatter_blocks(regions: BlockRegions, blocks: Tensor, runs: Tensor) -> None:
    """Do what the reference does; see there for arguments."""
    for column, part in _columns(regions):
        column.index_copy_(0, blocks, runs[:, part])


def _columns(regions: BlockRegions) -> Iterator[tuple[Tensor, slice]]:
    """Yield each region of all blocks [N or more, b], and where it lies in a block's run of bytes."""
    ends = accumulate(regions.sizes)
    for start, size, end in zip(regions.starts, regions.sizes, ends, strict=True):
        num_blocks = (regions.buffer.numel() - start) // size
        column = regions.buffer[start : start + num_blocks * size].view(num_blocks, size)
        yield column, slice(end - size, end)
