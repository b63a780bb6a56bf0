"""The sequences of one step as tensors, for kernels that find their sequence by themselves.

Dimensions: B sequences, n blocks of the longest table, M tiles.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from kvchat.engine.kernels.paged_attention.args import AttentionArgs, SequenceSpan, StepTables, attended
from kvchat.engine.kernels.triton_support import upload


def padded_tables(blocks: Sequence[Tensor]) -> Tensor:
    """Return lists of block ids as tables [B, n], int32, with zeros behind them; n is at least 1."""
    one = blocks[0].new_zeros(1)
    return pad_sequence([one, *blocks], batch_first=True)[1:].to(torch.int32)


def step_tables(spans: Sequence[SequenceSpan], first_visible: Callable[[int], int]) -> StepTables:
    """Return the spans of a step as tensors.

    Args:
        first_visible: position → first position that a query there sees.
    """
    spans = attended(spans)
    device = spans[0].blocks.device
    rows = [[span.q_start, span.q_end - span.q_start, span.position, span.first_block] for span in spans]
    q_starts, q_lens, positions, first_blocks = upload(rows, device).unbind(1)
    singles = tuple(number for number, row in enumerate(rows) if row[1] == 1)
    visible = [spans[number].position + 1 - first_visible(spans[number].position) for number in singles]
    return StepTables(
        q_starts=q_starts.contiguous(),
        q_lens=q_lens.contiguous(),
        positions=positions.contiguous(),
        first_blocks=first_blocks.contiguous(),
        tables=padded_tables([span.blocks for span in spans]),
        singles=singles,
        others=tuple((number, row[1]) for number, row in enumerate(rows) if row[1] > 1),
        most_visible=max(visible, default=0),
    )


def tables_of(args: AttentionArgs) -> StepTables:
    """Return the sequences of a call as tensors, those of the step where it has made them."""
    known = args.prepared
    return known if isinstance(known, StepTables) else step_tables(args.spans, args.first_visible)


def check_tables(tables: StepTables, pool: Tensor) -> None:
    """Raise AssertionError unless all blocks that sequences may read lie in the pool [N, H_kv, P, D]."""
    num_blocks, block_size, width = pool.shape[0], pool.shape[2], tables.tables.shape[1]
    rows = zip(
        tables.q_lens.tolist(),
        tables.positions.tolist(),
        tables.first_blocks.tolist(),
        tables.tables.tolist(),
        strict=True,
    )
    for number, (length, position, first_block, blocks) in enumerate(rows):
        if not length:
            continue
        last = (position + length - 1) // block_size - first_block
        if position < 0 or first_block < 0 or not 0 <= last < width:
            raise AssertionError(
                f"sequence {number} has {length} tokens from {position} on, and a table of {width} blocks "
                f"from block {first_block} on"
            )
        wrong = [block for block in blocks[: last + 1] if not 0 <= block < num_blocks]
        if wrong:
            raise AssertionError(f"sequence {number} has block {wrong[0]}; the pool has {num_blocks}")
