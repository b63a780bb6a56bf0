"""Batch → tensors → forward pass → logits.

All tokens of a step, prompt chunks and decode tokens of many sequences, lie in one row [T]; positions tell
them apart. The forward pass decides how a row is computed, and the format of each group what its tokens see.
The runner keeps the block tables as tensors and applies only what changed. Dimensions: T tokens in the batch,
R rows whose logits are needed, V vocabulary, P block size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from kvchat.engine.api.ids import GroupId, SequenceId
from kvchat.engine.formats.attention_metadata import AttentionMetadata, Step
from kvchat.engine.formats.full.attend import FullMetadataBuilder
from kvchat.engine.sequences.batch_plan import Batch, Chunk

BlockTables = dict[tuple[SequenceId, GroupId], Tensor]
"""Block ids of each sequence and group by logical number, int64, with room for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBatch:
    """One step's tokens of all sequences, one after the other.

    Args:
        token_ids: [T], int64.
        positions: of each token in its sequence [T], int64.
        groups: where the tokens go and what they see.
        sampling: rows whose logits are needed [R], int64, ascending.
    """

    token_ids: Tensor
    positions: Tensor
    groups: Mapping[GroupId, AttentionMetadata]
    sampling: Tensor


class ForwardPass(Protocol):
    """A model that computes rows."""

    @property
    def device(self) -> torch.device: ...

    def logits(self, row: InputBatch) -> Tensor:
        """Write keys and values of every token and return the logits [R, V] of the sampling rows."""
        ...


class ShortSteps(Protocol):
    """Another way to compute some batches; see `decode_graphs`."""

    def note(self, batch: Batch) -> None:
        """Take over the changes of block tables that come with any batch."""
        ...

    def takes(self, batch: Batch) -> bool:
        """Whether `logits` computes the batch. Pure."""
        ...

    def logits(self, batch: Batch, token_ids: Tensor | None = None) -> Tensor:
        """Compute a batch and return its logits [R, V], float32, a row for each chunk.

        Args:
            token_ids: the chunks' tokens [R], where the device alone knows them.
        """
        ...


class Runner:
    """Runs one model on the block tables of all live sequences."""

    def __init__(
        self, forward: ForwardPass, builders: Sequence[FullMetadataBuilder], short: ShortSteps | None = None
    ) -> None:
        """Args:
        builders: of the metadata of each group.
        short: computes the batches that it takes faster than they are computed here.
        """
        self._forward = forward
        self._builders = builders
        self._short = short
        self._device = forward.device
        self._tables: BlockTables = {}

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """Compute the batch's tokens and return the logits of the chunks that sample.

        Returns:
            [R, V] float32, in the order of the sampling chunks; a draft's rows follow that of its chunk.

        Effect:
            Writes keys and values of every token of the batch into the pools.
        """
        self.note(batch)
        if self._short is not None and self._short.takes(batch):
            return self._short.logits(batch)
        row = input_batch(batch.chunks, self._tables, self._builders, self._device)
        logits = self._forward.logits(row).float()
        for builder in self._builders:
            builder.finish(batch.chunks, row.groups[builder.group.id])
        return logits

    @torch.inference_mode()
    def run_ahead(self, batch: Batch, token_ids: Tensor) -> Tensor | None:
        """Do as `run` with tokens [R] that the device alone knows, one of each chunk; None: it takes no such
        batch, and has computed nothing.
        """
        self.note(batch)
        if self._short is None or not self._short.takes(batch):
            return None
        return self._short.logits(batch, token_ids)

    @torch.inference_mode()
    def note(self, batch: Batch) -> None:
        """Take over the changes of block tables that come with any batch, computed here or not."""
        if self._short is not None:
            self._short.note(batch)
        update_tables(self._tables, batch, [builder.group.id for builder in self._builders], self._device)
        # What begins anew may have become another text.
        for sequence in (*(one.sequence for one in batch.changes if one.start == 0), *batch.dropped):
            for builder in self._builders:
                builder.forget(sequence)


@torch.inference_mode()
def update_tables(tables: BlockTables, batch: Batch, groups: Sequence[GroupId], device: torch.device) -> None:
    """Bring block tables on a device up to date with a batch, those of `groups` if it drops a sequence."""
    for change in batch.changes:
        name, end = (change.sequence, change.group), change.start + len(change.block_ids)
        table = tables.get(name)
        if table is None or len(table) < end:
            grown = torch.zeros(max(2 * end, 16), dtype=torch.long, device=device)
            if table is not None:
                grown[: len(table)] = table
            table = tables[name] = grown
        table[change.start : end] = torch.tensor(change.block_ids, device=device)
    for sequence in batch.dropped:
        for group in groups:
            tables.pop((sequence, group), None)


def input_batch(
    chunks: Sequence[Chunk],
    tables: BlockTables,
    builders: Sequence[FullMetadataBuilder],
    device: torch.device,
) -> InputBatch:
    """Return the tokens of chunks in one row, placed by block tables as in `Step`."""
    positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
    token_ids = [token for chunk in chunks for token in chunk.token_ids]
    step = Step(chunks=chunks, positions=positions, tables=tables, device=device)
    sampling: list[int] = []
    end = 0
    for chunk in chunks:
        end += len(chunk.token_ids)
        sampling += range(end - chunk.num_rows, end)
    return InputBatch(
        token_ids=torch.tensor(token_ids, device=device),
        positions=torch.from_numpy(positions).to(device),
        groups={builder.group.id: builder.build(step) for builder in builders},
        sampling=torch.tensor(sampling, dtype=torch.long, device=device),
    )
