"""Batch → tensors → forward pass → logits.

All tokens of a step, prompt chunks and decode tokens of many branches, lie in one row [T]; positions tell
them apart. How a model computes a row is its forward pass's business. The runner keeps the block tables as
tensors and applies only what changed. Dimensions: T tokens in the batch, R rows whose logits are needed, V
vocabulary, P block size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kvchat.engine.api.ids import BranchId, GroupId
from kvchat.engine.attention.paged import GroupStep
from kvchat.engine.batch import Batch, Chunk
from kvchat.engine.cache.plan import TableChange
from kvchat.engine.cache.spec import Group
from kvchat.engine.kernels.paged_attention.args import SequenceSpan
from kvchat.engine.kernels.paged_attention.decodes import batch_decodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One step's tokens of all sequences, one after the other.

    Args:
        token_ids: [T], int64.
        positions: of each token in its sequence [T], int64.
        groups: where the tokens go and what they see.
        sampling: rows whose logits are needed [R], int64, ascending.
    """

    token_ids: Tensor
    positions: Tensor
    groups: Mapping[GroupId, GroupStep]
    sampling: Tensor


class ForwardPass(Protocol):
    """A model that computes rows."""

    @property
    def device(self) -> torch.device: ...

    def logits(self, row: Row) -> Tensor:
        """Write keys and values of every token and return the logits [R, V] of the sampling rows."""
        ...


class Runner:
    """Runs one model on the block tables of all live branches."""

    def __init__(self, forward: ForwardPass, groups: Sequence[Group], block_size: int) -> None:
        self._forward = forward
        self._groups = groups
        self._block_size = block_size
        self._device = forward.device
        self._tables: dict[tuple[BranchId, GroupId], Tensor] = {}

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """Compute the batch's tokens and return the logits of the chunks that sample.

        Returns:
            [R, V] float32, in the order of the sampling chunks.

        Effect:
            Writes keys and values of every token of the batch into the pools.
        """
        self._update_tables(batch)
        positions = torch.cat([torch.arange(chunk.start, chunk.end) for chunk in batch.chunks])
        token_ids = [token for chunk in batch.chunks for token in chunk.token_ids]
        row = Row(
            token_ids=torch.tensor(token_ids, device=self._device),
            positions=positions.to(self._device),
            groups={group.id: self._group_step(batch.chunks, group) for group in self._groups},
            sampling=torch.tensor(_sampling_rows(batch.chunks), dtype=torch.long, device=self._device),
        )
        return self._forward.logits(row).float()

    def _update_tables(self, batch: Batch) -> None:
        for change in batch.changes:
            self._apply(change)
        for branch in batch.dropped:
            for group in self._groups:
                self._tables.pop((branch, group.id), None)

    def _apply(self, change: TableChange) -> None:
        table = self._tables.get((change.branch, change.group))
        end = change.start + len(change.block_ids)
        if table is None or table.numel() < end:
            grown = torch.zeros(max(2 * end, 16), dtype=torch.long, device=self._device)
            if table is not None:
                grown[: table.numel()] = table
            table = self._tables[change.branch, change.group] = grown
        table[change.start : end] = torch.tensor(change.block_ids, device=self._device)

    def _group_step(self, chunks: Sequence[Chunk], group: Group) -> GroupStep:
        spans = self._spans(chunks, group)
        return GroupStep(
            slots=self._slots(chunks, group),
            spans=spans,
            decodes=batch_decodes(spans, group.spec.first_visible, self._block_size),
        )

    def _slots(self, chunks: Sequence[Chunk], group: Group) -> Tensor:
        """Return the slot of every token of the batch [T]."""
        slots = []
        for chunk in chunks:
            positions = torch.arange(chunk.start, chunk.end, device=self._device)
            blocks = self._tables[chunk.branch, group.id][positions // self._block_size]
            slots.append(blocks * self._block_size + positions % self._block_size)
        return torch.cat(slots)

    def _spans(self, chunks: Sequence[Chunk], group: Group) -> list[SequenceSpan]:
        spans: list[SequenceSpan] = []
        row = 0
        for chunk in chunks:
            first_block = group.spec.first_visible(chunk.start) // self._block_size
            last_block = -(-chunk.end // self._block_size)
            spans.append(
                SequenceSpan(
                    q_start=row,
                    q_end=row + chunk.end - chunk.start,
                    position=chunk.start,
                    first_block=first_block,
                    blocks=self._tables[chunk.branch, group.id][first_block:last_block],
                )
            )
            row += chunk.end - chunk.start
        return spans


def _sampling_rows(chunks: Sequence[Chunk]) -> list[int]:
    rows: list[int] = []
    row = -1
    for chunk in chunks:
        row += chunk.end - chunk.start
        if chunk.samples:
            rows.append(row)
    return rows
