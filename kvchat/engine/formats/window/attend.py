"""Attention to the first blocks and the last ones."""

import torch
from torch import Tensor

from kvchat.engine.formats.full.attend import ViewMetadataBuilder
from kvchat.engine.kernels.paged_attention.args import SequenceSpan
from kvchat.engine.sequences.batch_plan import Chunk


class WindowMetadataBuilder(ViewMetadataBuilder):
    """Builds metadata where what a query sees follows from its own block."""

    def span(self, chunk: Chunk, table: Tensor, rows: tuple[int, int]) -> SequenceSpan:
        """Return one sequence's part of a step: each block of queries is a part of its own."""
        size = self.block_size
        parts: list[SequenceSpan] = []
        position = chunk.start
        while position < chunk.end:
            last = min(chunk.end, (position // size + 1) * size)
            row = rows[0] + position - chunk.start
            parts.append(self._part(table, (row, row + last - position), position))
            position = last
        if len(parts) == 1:
            return parts[0]
        return SequenceSpan(rows[0], rows[1], chunk.start, 0, table[: -(-chunk.end // size)], tuple(parts))

    def _part(self, table: Tensor, rows: tuple[int, int], position: int) -> SequenceSpan:
        """Return the queries of one block, the first of them at `position`."""
        size = self.block_size
        parts = [table[first:end] for first, end in self.group.spec.visible_blocks(position, size)]
        blocks = parts[0] if len(parts) == 1 else torch.cat(parts)
        return SequenceSpan(rows[0], rows[1], position % size + (len(blocks) - 1) * size, 0, blocks)
