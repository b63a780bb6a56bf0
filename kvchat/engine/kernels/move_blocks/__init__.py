"""Dispatch by device: Triton on GPUs that it is made for, plain torch operations everywhere else."""

from collections.abc import Sequence

from torch import Tensor

from kvchat.engine.kernels.device import takes_triton
from kvchat.engine.kernels.move_blocks import torch_ops
from kvchat.engine.kernels.move_blocks.reference import BlockRegions

WORD_BYTES = 4
"""Triton moves regions of whole words."""


class BlockMoves:
    """Moves blocks of one group, each time all of them in one launch where Triton does it."""

    def __init__(self, regions: BlockRegions) -> None:
        self._regions = regions
        self._table: tuple[Tensor, Tensor, Tensor] | None = None
        if takes_triton(regions.buffer) and not any(size % WORD_BYTES for size in regions.sizes):
            from kvchat.engine.kernels.move_blocks import triton

            self._table = triton.table(regions)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy blocks; no target is also a source, and no target comes twice."""
        ids = torch_ops.block_ids([*sources, *targets], self._regions.buffer.device)
        parts = ids[: len(sources)], ids[len(sources) :]
        if self._table is None:
            torch_ops.copy_blocks(self._regions, *parts)
        else:
            from kvchat.engine.kernels.move_blocks import triton

            triton.copy_blocks(self._regions, *parts, self._table)

    def gather(self, blocks: Sequence[int]) -> Tensor:
        """Return blocks as runs of bytes [M, W], uint8, on the device."""
        ids = torch_ops.block_ids(list(blocks), self._regions.buffer.device)
        if self._table is None:
            return torch_ops.gather_blocks(self._regions, ids)
        from kvchat.engine.kernels.move_blocks import triton

        return triton.gather_blocks(self._regions, ids, self._table)

    def scatter(self, blocks: Sequence[int], runs: Tensor) -> None:
        """Fill blocks, none twice, from runs of bytes [M, W] on the device."""
        ids = torch_ops.block_ids(list(blocks), self._regions.buffer.device)
        if self._table is None:
            torch_ops.scatter_blocks(self._regions, ids, runs)
        else:
            from kvchat.engine.kernels.move_blocks import triton

            triton.scatter_blocks(self._regions, ids, runs, self._table)
