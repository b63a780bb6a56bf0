"""Batch → tensors → forward pass → logits.

All tokens of a step, prompt chunks and decode tokens of many sequences, lie in one row [T]; positions tell
them apart. How a model computes a row is its forward pass's business. The runner keeps the block tables as
tensors and applies only what changed. Dimensions: T tokens in the batch, R rows whose logits are needed, V
vocabulary, P block size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from kvchat.engine.api.ids import GroupId, SequenceId
from kvchat.engine.cache.block_operations import TableChange
from kvchat.engine.formats.full.attend import AttentionMetadata
from kvchat.engine.formats.pruned.pruner import Pruner
from kvchat.engine.formats.pruned.visible_blocks import pruned_span, windowed_span
from kvchat.engine.formats.shadow.shadows import Shadows
from kvchat.engine.formats.spec import Group, Selection
from kvchat.engine.kernels.paged_attention import prepare
from kvchat.engine.kernels.paged_attention.args import SequenceSpan
from kvchat.engine.kernels.quantized_attention.args import QuantizedStep
from kvchat.engine.sequences.batch_plan import Batch, Chunk


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
    """Another way to compute some batches; see `decode_steps`."""

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
        self,
        forward: ForwardPass,
        groups: Sequence[Group],
        block_size: int,
        short: ShortSteps | None = None,
        pruner: Pruner | None = None,
        shadows: Shadows | None = None,
    ) -> None:
        """Args:
        short: computes the batches that it takes faster than they are computed here.
        pruner: carries out what batches prune; None: none does.
        shadows: through which some tokens look at what is before them; None: all see their blocks.
        """
        self._pruner = pruner
        self._shadows = shadows
        self._forward = forward
        self._short = short
        self._groups = groups
        self._block_size = block_size
        self._device = forward.device
        self._tables: dict[tuple[SequenceId, GroupId], Tensor] = {}

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
        chunks = batch.chunks
        positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
        token_ids = [token for chunk in chunks for token in chunk.token_ids]
        lens = [len(chunk.token_ids) for chunk in chunks]
        row = InputBatch(
            token_ids=torch.tensor(token_ids, device=self._device),
            positions=torch.from_numpy(positions).to(self._device),
            groups={group.id: self._step_of(chunks, lens, positions, group) for group in self._groups},
            sampling=torch.tensor(_sampling_rows(chunks), dtype=torch.long, device=self._device),
        )
        logits = self._forward.logits(row).float()
        for number, chunk in enumerate(chunks):
            if chunk.prunes:
                assert self._pruner is not None
                self._pruner.prune(
                    chunk.prunes, {group: row.groups[group].spans[number] for group in row.groups}
                )
        if self._shadows is not None:
            self._shadows.trim({chunk.sequence for chunk in chunks})
            self._shadows.settle()
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
        for change in batch.changes:
            self._apply(change)
            if self._shadows is not None and change.start == 0:
                self._shadows.forget(change.sequence)  # it may have become another text
        for sequence in batch.dropped:
            if self._shadows is not None:
                self._shadows.forget(sequence)
            for group in self._groups:
                self._tables.pop((sequence, group.id), None)

    def _apply(self, change: TableChange) -> None:
        table = self._tables.get((change.sequence, change.group))
        end = change.start + len(change.block_ids)
        if table is None or table.numel() < end:
            grown = torch.zeros(max(2 * end, 16), dtype=torch.long, device=self._device)
            if table is not None:
                grown[: table.numel()] = table
            table = self._tables[change.sequence, change.group] = grown
        table[change.start : end] = torch.tensor(change.block_ids, device=self._device)

    def _step_of(
        self, chunks: Sequence[Chunk], lens: Sequence[int], positions: np.ndarray, group: Group
    ) -> AttentionMetadata:
        if group.quantized_from is None:
            return self._group_step(chunks, lens, positions, group)
        return self._quantized_step(chunks, group, group.quantized_from)

    def _quantized_step(self, chunks: Sequence[Chunk], group: Group, recent: GroupId) -> AttentionMetadata:
        """Return which quantized blocks are read, and which exact ones become old with the step."""
        nothing = torch.zeros(0, dtype=torch.long, device=self._device)
        blocks, sources = [], []
        for chunk in chunks:
            first, end = (group.num_blocks(length, self._block_size) for length in (chunk.start, chunk.end))
            blocks.append(self._tables.get((chunk.sequence, group.id), nothing)[:end])
            sources.append(self._tables[chunk.sequence, recent][first:end])
        targets = [listed[len(listed) - len(new) :] for listed, new in zip(blocks, sources, strict=True)]
        counts = [len(new) for new in sources]
        step = QuantizedStep(blocks, torch.cat(sources), torch.cat(targets), counts=counts)
        return AttentionMetadata(slots=nothing, spans=(), quantized=step)

    def _group_step(
        self, chunks: Sequence[Chunk], lens: Sequence[int], positions: np.ndarray, group: Group
    ) -> AttentionMetadata:
        """Return slots and spans from one list of all blocks that the step touches in a group."""
        if group.spec.selection.has_hidden_blocks:
            return self._viewed_step(chunks, lens, positions, group)
        size = self._block_size
        firsts = [group.spec.first_visible(chunk.start) // size for chunk in chunks]
        tables = [
            self._tables[chunk.sequence, group.id][first : -(-chunk.end // size)]
            for chunk, first in zip(chunks, firsts, strict=True)
        ]
        listed = torch.cat(tables)
        counts = [len(table) for table in tables]
        # Where block 0 of each sequence would stand in the list.
        origins = np.array([0, *accumulate(counts[:-1])]) - firsts
        places = positions // size + origins.repeat(lens)
        blocks = listed.index_select(0, torch.from_numpy(places).to(self._device))
        offsets = torch.from_numpy(positions % size).to(self._device)
        spans = [
            SequenceSpan(end - length, end, chunk.start, first, table)
            for chunk, length, end, first, table in zip(
                chunks, lens, accumulate(lens), firsts, listed.split(counts), strict=True
            )
        ]
        if group.spec.selection is Selection.EACH_STEP:
            spans = [self._shadowed(chunk, span) for chunk, span in zip(chunks, spans, strict=True)]
        return AttentionMetadata(
            slots=blocks * size + offsets,
            spans=spans,
            prepared=prepare(spans, group.spec.first_visible, size),
        )

    def _shadowed(self, chunk: Chunk, span: SequenceSpan) -> SequenceSpan:
        if chunk.shadowed is None:
            return span
        assert self._shadows is not None
        shadow = self._shadows.step(chunk.sequence, chunk.shadowed, chunk.start, span.blocks)
        return replace(span, shadow=shadow)

    def _viewed_step(
        self, chunks: Sequence[Chunk], lens: Sequence[int], positions: np.ndarray, group: Group
    ) -> AttentionMetadata:
        """Return slots, and spans over the blocks in sight."""
        size = self._block_size
        tables = [self._tables[chunk.sequence, group.id] for chunk in chunks]
        spans = [
            self._seen(chunk, group, table, (end - length, end))
            for chunk, length, end, table in zip(chunks, lens, accumulate(lens), tables, strict=True)
        ]
        at = torch.from_numpy(positions).to(self._device)
        parts = [table[own // size] for table, own in zip(tables, at.split(list(lens)), strict=True)]
        prepared = prepare(spans, lambda _: 0, size)
        return AttentionMetadata(slots=torch.cat(parts) * size + at % size, spans=spans, prepared=prepared)

    def _seen(self, chunk: Chunk, group: Group, table: Tensor, rows: tuple[int, int]) -> SequenceSpan:
        if group.spec.num_sink_blocks:
            return windowed_span(group.spec, table, rows, chunk.start, self._block_size)
        hidden_ranges = dict(chunk.hidden_ranges).get(group.id, ())
        span = pruned_span(hidden_ranges, table, rows, chunk.start, self._block_size)
        if not chunk.prunes or self._pruner is None:
            return span
        return replace(span, watch=self._pruner.watch())


def _sampling_rows(chunks: Sequence[Chunk]) -> list[int]:
    rows: list[int] = []
    end = 0
    for chunk in chunks:
        end += chunk.end - chunk.start
        rows += range(end - chunk.num_rows, end)
    return rows
