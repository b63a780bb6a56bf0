"""Move whole blocks, all layers of a group in one launch: one program per block, region and piece.

Dimensions: R regions of a block, M blocks that move, W bytes of a block.
"""

from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvchat.engine.kernels.move_blocks.reference import BlockRegions

WORD_BYTES = 4
PIECE_WORDS = 2048


def copy_blocks(regions: BlockRegions, sources: Tensor, targets: Tensor) -> None:
    """Do what the reference does; see there for arguments."""
    if len(sources):
        words = regions.buffer.view(torch.int32)
        _move[_grid(regions, len(sources))](
            words, words, sources, targets, *_table(regions), 0, **_MODES["copy"]
        )


def gather_blocks(regions: BlockRegions, blocks: Tensor) -> Tensor:
    """Return what the reference returns; see there for arguments."""
    runs = regions.buffer.new_empty(len(blocks), regions.block_bytes)
    if len(blocks):
        arguments = regions.buffer.view(torch.int32), runs.view(torch.int32), blocks, blocks
        row_words = regions.block_bytes // WORD_BYTES
        _move[_grid(regions, len(blocks))](*arguments, *_table(regions), row_words, **_MODES["gather"])
    return runs


def scatter_blocks(regions: BlockRegions, blocks: Tensor, runs: Tensor) -> None:
    """Do what the reference does; see there for arguments."""
    if len(blocks):
        arguments = runs.view(torch.int32), regions.buffer.view(torch.int32), blocks, blocks
        row_words = regions.block_bytes // WORD_BYTES
        _move[_grid(regions, len(blocks))](*arguments, *_table(regions), row_words, **_MODES["scatter"])


_MODES = {
    "copy": {"FROM_RUNS": False, "TO_RUNS": False, "PIECE": PIECE_WORDS},
    "gather": {"FROM_RUNS": False, "TO_RUNS": True, "PIECE": PIECE_WORDS},
    "scatter": {"FROM_RUNS": True, "TO_RUNS": False, "PIECE": PIECE_WORDS},
}


def _grid(regions: BlockRegions, num_blocks: int) -> tuple[int, int, int]:
    return num_blocks, len(regions.sizes), triton.cdiv(max(regions.sizes), PIECE_WORDS * WORD_BYTES)


def _table(regions: BlockRegions) -> tuple[Tensor, Tensor, Tensor]:
    """Return each region's pool start, size, and place in a run, in words [R]."""
    places = [0, *accumulate(regions.sizes)][:-1]
    rows = [regions.starts, regions.sizes, places]
    table = torch.tensor(rows, device=regions.buffer.device) // WORD_BYTES
    return table[0], table[1], table[2]


@triton.jit
def _move(
    source,
    target,
    source_blocks,
    target_blocks,
    starts,
    sizes,
    places,
    row_words,
    FROM_RUNS: tl.constexpr,
    TO_RUNS: tl.constexpr,
    PIECE: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    region = tl.program_id(1)
    size = tl.load(sizes + region)
    start = tl.load(starts + region)
    word = tl.program_id(2) * PIECE + tl.arange(0, PIECE)
    run = number * row_words + tl.load(places + region)
    if FROM_RUNS:
        read = source + run
    else:
        read = source + start + tl.load(source_blocks + number) * size
    if TO_RUNS:
        write = target + run
    else:
        write = target + start + tl.load(target_blocks + number) * size
    tl.store(write + word, tl.load(read + word, mask=word < size, other=0), mask=word < size)
