"""Visible blocks: block tables of a step's queries under a view.

Keys carry their positions, so attention need not know how far apart two of them are, only which come before a
query. A sequence is therefore attended to as if the blocks in sight were all there are, one behind the other.
Dimensions: P block size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvchat.engine.formats.spec import CacheSpec
from kvchat.engine.kernels.paged_attention.args import SequenceSpan


def pruned_span(
    hidden_ranges: Sequence[tuple[int, int]],
    table: Tensor,
    rows: tuple[int, int],
    start: int,
    block_size: int,
) -> SequenceSpan:
    """Return one sequence's part of a step where all its queries miss the same blocks.

    Args:
        hidden_ranges: blocks [start, end) that are out of sight, ascending; all of them before the first
        token.
        table: all block ids of the sequence by logical number, int64.
        rows: first row in the step, and the one behind the last.
        start: position of the first token.
    """
    num_blocks = -(-(start + rows[1] - rows[0]) // block_size)
    parts: list[Tensor] = []
    at = lost = 0
    for first, end in hidden_ranges:
        parts.append(table[at:first])
        at, lost = end, lost + end - first
    blocks = torch.cat([*parts, table[at:num_blocks]]) if parts else table[:num_blocks]
    return SequenceSpan(rows[0], rows[1], start - lost * block_size, 0, blocks)


def windowed_span(
    spec: CacheSpec, table: Tensor, rows: tuple[int, int], start: int, block_size: int
) -> SequenceSpan:
    """Return one sequence's part of a step where queries see the first blocks and the last ones.

    What a query sees follows from its own block, so each block of queries is a part of its own.

    Args:
        table: all block ids of the sequence by logical number, int64.
        rows: first row in the step, and the one behind the last.
        start: position of the first token.
    """
    end = start + rows[1] - rows[0]
    parts: list[SequenceSpan] = []
    position = start
    while position < end:
        last = min(end, (position // block_size + 1) * block_size)
        row = rows[0] + position - start
        parts.append(_part(spec, table, (row, row + last - position), position, block_size))
        position = last
    if len(parts) == 1:
        return parts[0]
    blocks = table[: -(-end // block_size)]
    return SequenceSpan(rows[0], rows[1], start, 0, blocks, tuple(parts))


def _part(
    spec: CacheSpec, table: Tensor, rows: tuple[int, int], position: int, block_size: int
) -> SequenceSpan:
    """Return the queries of one block, the first of them at `position`."""
    own = position // block_size
    first, sinks = spec.first_visible(position) // block_size, spec.num_sink_blocks
    blocks = table[: own + 1]
    if first > sinks:
        blocks = blocks.new_empty(sinks + own + 1 - first)
        blocks[:sinks] = table[:sinks]
        blocks[sinks:] = table[first : own + 1]
    seen = position % block_size + (len(blocks) - 1) * block_size
    return SequenceSpan(rows[0], rows[1], seen, 0, blocks)
