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
VECTOR_WORDS = 4
"""A thread reads so many words at once where every region is a multiple of them."""

Table = tuple[Tensor, Tensor, Tensor]
"""Each region's pool start, size, and place in a run, in words [R], int64, on the device."""


def copy_blocks(regions: BlockRegions, sources: Tensor, targets: Tensor, known: Table) -> None:
    """Do what the reference does; see there for arguments. `known`: what `table` returns for the regions."""
    if len(sources):
        words = regions.buffer.view(torch.int32)
        _move[_grid(regions, len(sources))](
            words, words, sources, targets, *known, 0, **constants("copy", regions)
        )


def gather_blocks(regions: BlockRegions, blocks: Tensor, known: Table) -> Tensor:
    """Return what the reference returns; see there for arguments, and `copy_blocks`."""
    runs = regions.buffer.new_empty(len(blocks), regions.block_bytes)
    if len(blocks):
        arguments = regions.buffer.view(torch.int32), runs.view(torch.int32), blocks, blocks
        row_words = regions.block_bytes // WORD_BYTES
        _move[_grid(regions, len(blocks))](*arguments, *known, row_words, **constants("gather", regions))
    return runs


def scatter_blocks(regions: BlockRegions, blocks: Tensor, runs: Tensor, known: Table) -> None:
    """Do what the reference does; see there for arguments, and `copy_blocks`."""
    assert runs.is_contiguous(), "runs lie one behind the other"
    if len(blocks):
        arguments = runs.view(torch.int32), regions.buffer.view(torch.int32), blocks, blocks
        row_words = regions.block_bytes // WORD_BYTES
        _move[_grid(regions, len(blocks))](*arguments, *known, row_words, **constants("scatter", regions))


def constants(mode: str, regions: BlockRegions) -> dict[str, int | bool]:
    """Return what the kernel is compiled for, to `copy`, `gather` or `scatter`."""
    is_even = all(size % (VECTOR_WORDS * WORD_BYTES) == 0 for size in (*regions.sizes, *regions.starts))
    return {
        "FROM_RUNS": mode == "scatter",
        "TO_RUNS": mode == "gather",
        "PIECE": PIECE_WORDS,
        "VECTOR": VECTOR_WORDS if is_even else 1,
    }


def _grid(regions: BlockRegions, num_blocks: int) -> tuple[int, int, int]:
    return num_blocks, len(regions.sizes), triton.cdiv(max(regions.sizes), PIECE_WORDS * WORD_BYTES)


def table(regions: BlockRegions) -> Table:
    """Return where regions lie, for all moves of their blocks."""
    places = [0, *accumulate(regions.sizes)][:-1]
    # Divided here, not on the device: whichever stream asks first, the others find the numbers whole.
    rows = [[at // WORD_BYTES for at in row] for row in (regions.starts, regions.sizes, places)]
    words = torch.tensor(rows, device=regions.buffer.device)
    return words[0], words[1], words[2]


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
    VECTOR: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    region = tl.program_id(1)
    size = tl.multiple_of(tl.load(sizes + region), VECTOR)
    start = tl.multiple_of(tl.load(starts + region), VECTOR)
    place = tl.multiple_of(tl.load(places + region), VECTOR)
    word = tl.program_id(2) * PIECE + tl.arange(0, PIECE)
    run = number * row_words + place
    if FROM_RUNS:
        read = source + run
    else:
        read = source + start + tl.load(source_blocks + number) * size
    if TO_RUNS:
        write = target + run
    else:
        write = target + start + tl.load(target_blocks + number) * size
    tl.store(write + word, tl.load(read + word, mask=word < size, other=0), mask=word < size)
