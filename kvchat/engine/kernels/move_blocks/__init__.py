"""Dispatch by device: Triton on GPUs that it is made for, the reference everywhere else."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvchat.engine.kernels.bounds_checks import check_blocks, check_targets, debugs
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.move_blocks import reference
from kvchat.engine.kernels.move_blocks.reference import BlockRegions
from kvchat.engine.kernels.triton_support import takes_triton, upload

OPERATION = "moving blocks"
WORD_BYTES = 4
"""Triton moves regions of whole words."""


class BlockMoves:
    """Moves blocks of one group, each time all of them in one launch where Triton does it."""

    def __init__(self, regions: BlockRegions) -> None:
        self._regions = regions
        self._is_whole_words = not any(size % WORD_BYTES for size in regions.sizes)
        self._table: tuple[Tensor, Tensor, Tensor] | None = None

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy blocks; no target is also a source, and no target comes twice."""
        if debugs():
            check_targets(targets, sources)
        ids = self._ids([*sources, *targets])
        self._run("copy_blocks", ids[: len(sources)], ids[len(sources) :])

    def gather(self, blocks: Sequence[int]) -> Tensor:
        """Return blocks as runs of bytes [M, W], uint8, on the device."""
        runs: Tensor = self._run("gather_blocks", self._ids(blocks))
        return runs

    def scatter(self, blocks: Sequence[int], runs: Tensor) -> None:
        """Fill blocks, none twice, from runs of bytes [M, W] on the device."""
        if debugs():
            check_targets(blocks)
        self._run("scatter_blocks", self._ids(blocks), runs)

    def _run(self, name: str, *tensors: Tensor) -> Any:
        def plain() -> Any:
            return getattr(reference, name)(self._regions, *tensors)

        if not self._is_whole_words or not takes_triton(self._regions.buffer, OPERATION):
            return plain()
        from kvchat.engine.kernels.move_blocks import triton

        def kernel() -> Any:
            if self._table is None:
                self._table = triton.table(self._regions)
            return getattr(triton, name)(self._regions, *tensors, self._table)

        return HEALTH.attempt(OPERATION, kernel, plain)

    def _ids(self, blocks: Sequence[int]) -> Tensor:
        if debugs():
            check_blocks(blocks, self._regions.num_blocks)
        return upload(blocks, self._regions.buffer.device, torch.int64)
