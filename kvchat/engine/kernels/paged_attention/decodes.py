"""Sequences with one query each, put together so that one operation serves many of them.

Their block tables are padded to the longest; sequences of very different lengths go into different batches,
so that padding never costs more than it saves. Dimensions: B sequences of a batch, n blocks of the longest, P
block size.
"""

from collections.abc import Callable, Sequence

import torch

from kvchat.engine.kernels.paged_attention.args import DecodeBatch, Decodes, SequenceSpan

MOST_PADDING = 2
"""A batch's longest sequence has at most this many times the blocks of its shortest."""


def batch_decodes(
    spans: Sequence[SequenceSpan], first_visible: Callable[[int], int], block_size: int
) -> Decodes:
    """Return the batches of single queries, and what is left: prompts, and queries without company.

    Args:
        first_visible: position → first position that a query there sees.
    """
    singles = [span for span in spans if span.q_end - span.q_start == 1]
    left = [span for span in spans if span.q_end - span.q_start > 1]
    sizes = {span.q_start: _num_blocks(span, first_visible, block_size) for span in singles}
    singles.sort(key=lambda span: sizes[span.q_start])
    batches: list[DecodeBatch] = []
    while singles:
        most = MOST_PADDING * sizes[singles[0].q_start]
        together = [span for span in singles if sizes[span.q_start] <= most]
        singles = singles[len(together) :]
        if len(together) > 1:
            batches.append(_batch(together, first_visible, block_size))
        else:
            left += together
    return Decodes(tuple(batches), tuple(left))


def _num_blocks(span: SequenceSpan, first_visible: Callable[[int], int], block_size: int) -> int:
    return span.position // block_size - first_visible(span.position) // block_size + 1


def _batch(
    spans: Sequence[SequenceSpan], first_visible: Callable[[int], int], block_size: int
) -> DecodeBatch:
    device = spans[0].blocks.device
    most = max(_num_blocks(span, first_visible, block_size) for span in spans)
    tables, starts, ends = [], [], []
    for span in spans:
        first = first_visible(span.position)
        first_block = first // block_size
        blocks = span.blocks[first_block - span.first_block :]
        tables.append(torch.cat([blocks, blocks[-1:].expand(most - len(blocks))]))
        starts.append(first - first_block * block_size)
        ends.append(span.position + 1 - first_block * block_size)
    slots = torch.arange(most * block_size, device=device)
    start, end = torch.tensor([starts, ends], device=device)[:, :, None]
    return DecodeBatch(
        rows=torch.tensor([span.q_start for span in spans], device=device),
        blocks=torch.stack(tables),
        hidden=(slots < start) | (slots >= end),
    )
