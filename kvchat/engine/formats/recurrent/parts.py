"""Parts of a step that layers with a state compute by themselves: tokens that go together.

All sequences with one token are computed together; others in pieces that end at multiples of
`StateSpec.piece` tokens, so that the same tokens are computed together whatever a step consists of, or, where
that makes no difference, all at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.attention_metadata import TORCH_DTYPES, AttentionMetadata, LayerPool, Step
from kvchat.engine.formats.full.attend import FullMetadataBuilder
from kvchat.engine.formats.recurrent.spec import StateSpec
from kvchat.engine.formats.spec import Group
from kvchat.engine.sequences.batch_plan import Chunk


@dataclass(frozen=True, slots=True)
class StatePart:
    """Rows that a layer computes in one call: n tokens of each of B sequences.

    Args:
        rows: in the step [B * n], sequence after sequence.
        shape: (B, n).
        reads: blocks of the states before these tokens [B]; None: there are no tokens before them.
        writes: blocks of the states behind them [B].
    """

    rows: Tensor
    shape: tuple[int, int]
    reads: Tensor | None
    writes: Tensor

    def within(self, index: Tensor) -> "StatePart | None":
        """Return the sequences whose rows are among `index`, sorted, as rows of that; None: none is."""
        rows = self.rows.view(self.shape)
        is_kept = torch.isin(rows[:, 0], index)
        if not is_kept.any():
            return None
        rows = torch.searchsorted(index, rows[is_kept])
        reads = None if self.reads is None else self.reads[is_kept]
        return StatePart(rows.flatten(), (len(rows), rows.shape[1]), reads, self.writes[is_kept])


@dataclass(frozen=True, slots=True)
class StateMetadata(AttentionMetadata):
    """The parts of a step in one group of layers with a state."""

    parts: Sequence[StatePart] = ()

    def part(self, numbers: Sequence[int], index: Tensor) -> "StateMetadata":
        """Return the same for the sequences whose rows are `index`."""
        kept = [part.within(index) for part in self.parts]
        return StateMetadata(self.slots, (), parts=[part for part in kept if part is not None])


class StateMetadataBuilder(FullMetadataBuilder):
    """Builds the parts of each step. A sequence's table has the state behind its computed tokens, if there
    are any, and behind it the blocks for the next ones: those that the step keeps on its way, and its last.
    """

    def __init__(self, group: Group, block_size: int) -> None:
        super().__init__(group, block_size)
        assert isinstance(group.spec, StateSpec)
        self._piece = group.spec.piece
        self._is_stepwise = group.spec.is_stepwise
        self._is_stacked = group.spec.is_stacked

    def build(self, step: Step) -> AttentionMetadata:
        parts: list[StatePart] = []
        singles: list[tuple[int, Tensor]] = []
        row = 0
        for chunk in step.chunks:
            table = step.tables[chunk.sequence, self.group.id]
            if self._is_stacked and chunk.start and len(chunk.token_ids) == 1:
                singles.append((row, table))
            else:
                parts += self._pieces(chunk, row, table)
            row += len(chunk.token_ids)
        if singles:
            rows = torch.tensor([row for row, _ in singles], device=step.device)
            reads, writes = torch.stack([table[:2] for _, table in singles], dim=1)
            parts.append(StatePart(rows, (len(singles), 1), reads, writes))
        return StateMetadata(torch.zeros(0, dtype=torch.long), (), parts=parts)

    def _pieces(self, chunk: Chunk, row: int, table: Tensor) -> Iterator[StatePart]:
        blocks = list(table.split(1))
        reads = blocks.pop(0) if chunk.start else None
        start = chunk.start
        for stop, writes in zip((*chunk.snapshots, chunk.end), blocks, strict=False):
            while start < stop:
                end = stop
                if self._piece > 1:
                    end = min(end, start // self._piece * self._piece + self._piece)
                if reads is not None and self._is_stepwise:
                    end = start + 1
                rows = torch.arange(row, row + end - start, device=table.device)
                yield StatePart(rows, (1, end - start), reads, writes)
                row, start, reads = row + end - start, end, writes


@dataclass(frozen=True, slots=True)
class LayerStates:
    """The states of one layer in all blocks of its group: tensors [N, ...], by kind and number."""

    group: GroupId
    tensors: Mapping[tuple[str, int], Tensor]


def layer_states(pools: Mapping[int, LayerPool]) -> dict[int, LayerStates]:
    """Return the states in layers' memory, [N, 1, 1, b] bytes of each."""
    found = {}
    for layer, pool in pools.items():
        assert isinstance(pool.spec, StateSpec)
        tensors = {}
        for one, start in zip(pool.spec.tensors, pool.spec.starts, strict=True):
            run = pool.keys[:, 0, 0, start : start + one.num_bytes].view(TORCH_DTYPES[one.dtype])
            tensors[one.kind, one.number] = run.unflatten(1, one.shape)
        found[layer] = LayerStates(pool.group, tensors)
    return found
