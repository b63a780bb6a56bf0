"""The sequences of one step as tensors, for kernels that find their sequence by themselves.

Dimensions: B sequences, n blocks of the longest table, M tiles.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import SequenceSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTables:
    """One group's sequences in a step; all tensors int32 and on the device of the pools.

    Args:
        q_starts: first row of each sequence in the batch [B].
        q_lens: queries of each sequence [B].
        positions: position of each sequence's first query [B].
        first_blocks: logical number of the first block in its table [B].
        tables: block ids, padded with each sequence's last one [B, n].
        singles: numbers of the sequences with one query.
        others: numbers of the sequences with more queries, each with their number.
        most_visible: most keys that one of `singles` sees.
    """

    q_starts: Tensor
    q_lens: Tensor
    positions: Tensor
    first_blocks: Tensor
    tables: Tensor
    singles: tuple[int, ...]
    others: tuple[tuple[int, int], ...]
    most_visible: int


def padded_tables(spans: Sequence[SequenceSpan]) -> Tensor:
    """Return the spans' block ids, padded with each span's last one [B, n], int32."""
    most = max(len(span.blocks) for span in spans)
    padded = [torch.cat([span.blocks, span.blocks[-1:].expand(most - len(span.blocks))]) for span in spans]
    return torch.stack(padded).to(torch.int32)


def step_tables(spans: Sequence[SequenceSpan], first_visible: Callable[[int], int]) -> StepTables:
    """Return the spans of a step as tensors.

    Args:
        first_visible: position → first position that a query there sees.
    """
    device = spans[0].blocks.device
    rows = [[span.q_start, span.q_end - span.q_start, span.position, span.first_block] for span in spans]
    q_starts, q_lens, positions, first_blocks = torch.tensor(rows, dtype=torch.int32, device=device).unbind(1)
    singles = tuple(number for number, row in enumerate(rows) if row[1] == 1)
    visible = [spans[number].position + 1 - first_visible(spans[number].position) for number in singles]
    return StepTables(
        q_starts=q_starts.contiguous(),
        q_lens=q_lens.contiguous(),
        positions=positions.contiguous(),
        first_blocks=first_blocks.contiguous(),
        tables=padded_tables(spans),
        singles=singles,
        others=tuple((number, row[1]) for number, row in enumerate(rows) if row[1] > 1),
        most_visible=max(visible, default=0),
    )
