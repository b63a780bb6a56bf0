"""Blocks are moved as whole runs of bytes, whatever the sizes of their regions."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from kvchat.engine.kernels.bounds_checks import debugs
from kvchat.engine.kernels.move_blocks import BlockMoves
from kvchat.engine.kernels.move_blocks.bring import bring_blocks, runs_of
from kvchat.engine.kernels.move_blocks.reference import BlockRegions

pytestmark = pytest.mark.cpu

SIZES, NUM_BLOCKS = (64, 6, 4, 1000), 7


def make_regions() -> BlockRegions:
    starts, start = [], 0
    for size in SIZES:
        starts.append(start)
        start += (NUM_BLOCKS * size + 15) // 16 * 16
    generator = torch.Generator().manual_seed(0)
    buffer = torch.randint(0, 256, (start,), dtype=torch.uint8, generator=generator)
    return BlockRegions(buffer, tuple(starts), SIZES)


@pytest.fixture
def debugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have what is handed to kernels looked at."""
    monkeypatch.setenv("KVCHAT_DEBUG_KERNELS", "1")
    debugs.cache_clear()
    yield
    monkeypatch.undo()
    debugs.cache_clear()


def runs_in(regions: BlockRegions) -> Tensor:
    """Return all blocks as runs of bytes, one region behind the other."""
    parts = zip(regions.starts, regions.sizes, strict=True)
    return torch.cat(
        [regions.buffer[at : at + NUM_BLOCKS * size].view(NUM_BLOCKS, size) for at, size in parts], dim=1
    )


@pytest.mark.parametrize("ids", [[5, 0, 3], [2], []])
def test_blocks_move_region_by_region_and_nothing_else_does(ids: Sequence[int]) -> None:
    regions, targets = make_regions(), [1, 6, 4][: len(ids)]
    moves, wanted = BlockMoves(regions), runs_in(regions)
    moves.copy(ids, targets)
    for source, target in zip(ids, targets, strict=True):
        wanted[target] = wanted[source]
    assert torch.equal(runs_in(regions), wanted)
    runs = moves.gather(ids)
    assert runs.shape == (len(ids), sum(SIZES))
    assert all(torch.equal(run, wanted[source]) for run, source in zip(runs, ids, strict=True))
    moves.scatter(targets[::-1], runs)
    for run, target in zip(runs, targets[::-1], strict=True):
        wanted[target] = run
    assert torch.equal(runs_in(regions), wanted)
    gaps = make_regions().buffer
    for at, size in zip(regions.starts, SIZES, strict=True):
        gaps[at : at + NUM_BLOCKS * size] = regions.buffer[at : at + NUM_BLOCKS * size]
    assert torch.equal(regions.buffer, gaps)


@pytest.mark.usefixtures("debugged")
@pytest.mark.parametrize("ids", [[-1], [0, NUM_BLOCKS]])
def test_blocks_outside_their_pool_are_found_before_they_move(ids: Sequence[int]) -> None:
    regions = make_regions()
    assert regions.num_blocks == NUM_BLOCKS
    moves = BlockMoves(regions)
    moves.gather([0, NUM_BLOCKS - 1])
    with pytest.raises(AssertionError, match=f"block {ids[-1]} is moved; the pool has {NUM_BLOCKS}"):
        moves.gather(ids)


@pytest.mark.usefixtures("debugged")
@pytest.mark.parametrize(
    ("sources", "targets", "words"),
    [
        ([0, 1], [2, 2], "block 2 is written twice by one move"),
        ([0, 1], [2, 0], "block 0 is read and written by one move"),
        ([0, 1], [2, 3], None),
    ],
)
def test_moves_that_get_in_their_own_way_are_found_before(
    sources: Sequence[int], targets: Sequence[int], words: str | None
) -> None:
    """Programs run in any order: which of two writes comes last, nobody knows."""
    moves = BlockMoves(make_regions())
    if words is None:
        moves.copy(sources, targets)
        return
    with pytest.raises(AssertionError, match=words):
        moves.copy(sources, targets)
    if "twice" in words:
        with pytest.raises(AssertionError, match=words):
            moves.scatter(targets, moves.gather(sources))


def test_blocks_are_brought_from_another_memory_in_the_order_of_a_sequence() -> None:
    """Neighbours in one copy; what is brought is a copy."""
    pool = torch.arange(12.0)[:, None].expand(12, 3).clone()
    ids = [4, 5, 6, 2, 1, 0, 9, 10, 11, 4]
    assert list(runs_of(ids)) == [(0, 3), (3, 4), (4, 5), (5, 6), (6, 9), (9, 10)]
    assert list(runs_of([])) == []
    brought = bring_blocks(pool, torch.tensor(ids))
    assert brought[:, 0].tolist() == ids
    brought.zero_()
    assert pool[4].tolist() == [4, 4, 4]
    assert bring_blocks(pool, torch.tensor([], dtype=torch.int64)).shape == (0, 3)
