"""Sequences with one query each, put together so that one operation serves many of them.

Blocks are listed sequence after sequence, without padding; only scores are padded, to the longest sequence.
So that they stay small, sequences of very different lengths go into different batches. Dimensions: B
sequences of a batch, n blocks of the longest, M blocks of all, E of them with hidden slots, P block size.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import DecodeBatch, Decodes, SequenceSpan, attended

MOST_PADDING = 4
"""A batch's longest sequence has at most this many times the blocks of its shortest."""
FEW_BLOCKS = 16
"""A query without company that sees at most this many blocks is faster without the detour."""


def batch_decodes(
    spans: Sequence[SequenceSpan], first_visible: Callable[[int], int], block_size: int
) -> Decodes:
    """Return the batches of single queries, and what is left: prompts, and queries without company.

    Args:
        first_visible: position → first position that a query there sees.
    """
    spans = attended(spans)
    singles = [
        _Single(span, first_visible(span.position), block_size)
        for span in spans
        if span.q_end - span.q_start == 1
    ]
    singles.sort(key=lambda single: single.num_blocks)
    batches: list[DecodeBatch] = []
    left = [span for span in spans if span.q_end - span.q_start > 1]
    while singles:
        most = MOST_PADDING * singles[0].num_blocks
        together = [single for single in singles if single.num_blocks <= most]
        singles = singles[len(together) :]
        if len(together) > 1 or together[0].num_blocks > FEW_BLOCKS:
            batches.append(_batch(together, block_size))
        else:
            left.append(together[0].span)
    return Decodes(tuple(batches), tuple(left))


class _Single:
    """A query that stands alone: its span, the blocks it sees, and its bounds [first, end) in their slots."""

    __slots__ = ("blocks", "end", "first", "num_blocks", "span")

    def __init__(self, span: SequenceSpan, first: int, block_size: int) -> None:
        first_block = first // block_size
        self.span = span
        self.num_blocks = span.position // block_size + 1 - first_block
        begin = first_block - span.first_block
        self.blocks = span.blocks[begin : begin + self.num_blocks]
        self.first = first - first_block * block_size
        self.end = span.position + 1 - first_block * block_size


def _batch(singles: Sequence[_Single], block_size: int) -> DecodeBatch:
    num_blocks = np.array([single.num_blocks for single in singles])
    bounds = np.array([(single.first, single.end) for single in singles])
    num_places = int(num_blocks[-1])
    owners = np.arange(len(singles)).repeat(num_blocks)
    numbers = np.arange(len(owners)) - (num_blocks.cumsum() - num_blocks).repeat(num_blocks)
    # Which slots of each block lie outside [first, end) of its sequence.
    first, end = (bounds[owners] - numbers[:, None] * block_size).T
    is_whole = (first <= 0) & (end >= block_size)
    order = np.concatenate([is_whole.nonzero()[0], (~is_whole).nonzero()[0]])
    slots = np.arange(block_size)
    hidden = (slots < first[~is_whole, None]) | (slots >= end[~is_whole, None])
    device = singles[0].blocks.device
    listed = torch.cat([single.blocks for single in singles])
    return DecodeBatch(
        rows=_tensor(np.array([single.span.q_start for single in singles]), device),
        num_places=num_places,
        blocks=listed.index_select(0, _tensor(order, device)),
        owners=_tensor(owners[order], device),
        places=_tensor((owners * num_places + numbers)[order], device),
        hidden=_tensor(hidden, device),
    )


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)
