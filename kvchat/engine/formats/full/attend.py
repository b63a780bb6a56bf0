"""Attention over blocks of keys and values: write the new ones, attend through the block tables.

For full, sliding and chunked layers; other formats inherit what is the same for them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.formats.attention_metadata import AttentionMetadata, LayerPool, LayerStep, Step
from kvchat.engine.formats.spec import Group
from kvchat.engine.kernels.paged_attention import paged_attention, prepare
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, SequenceSpan, StepTables
from kvchat.engine.kernels.store_kv import store_kv
from kvchat.engine.sequences.batch_plan import Chunk


class FullAttention:
    """Attention of one layer.

    Args:
        pool: the blocks that its tokens are written to.
    """

    def __init__(self, pool: LayerPool) -> None:
        self.pool = pool

    def attend(self, step: LayerStep) -> Tensor:
        """Store the new keys and values and return [T, H, D_v]."""
        own = step.groups[self.pool.group]
        if step.stores:
            self.store(step.new, own.slots)
        scaling = step.call.scaling
        args = AttentionArgs(
            spans=own.spans,
            prepared=own.prepared,
            softmax_scale=step.query.shape[2] ** -0.5 if scaling is None else scaling,
            window=self.pool.spec.window,
            chunk=self.pool.spec.chunk,
            softcap=step.call.softcap,
            sinks=step.call.sinks,
        )
        return self.attention(step, args)

    def store(self, new: KVPair, slots: Tensor) -> None:
        store_kv(new.keys, new.values, self.pool.keys, self.pool.values, slots)

    def attention(self, step: LayerStep, args: AttentionArgs) -> Tensor:
        """Return [T, H, D_v] once the new tokens are stored."""
        return paged_attention(step.query, self.pool.keys, self.pool.values, args)


class FullMetadataBuilder:
    """Builds the metadata of one group, step by step."""

    def __init__(self, group: Group, block_size: int) -> None:
        self.group = group
        self.block_size = block_size

    def build(self, step: Step) -> AttentionMetadata:
        """Return slots and spans from one list of all blocks that the step touches in the group."""
        size, spec = self.block_size, self.group.spec
        lens = [len(chunk.token_ids) for chunk in step.chunks]
        firsts = [spec.first_visible(chunk.start) // size for chunk in step.chunks]
        tables = [
            step.tables[chunk.sequence, self.group.id][first : -(-chunk.end // size)]
            for chunk, first in zip(step.chunks, firsts, strict=True)
        ]
        listed = torch.cat(tables)
        counts = [len(table) for table in tables]
        # Where block 0 of each sequence would stand in the list.
        origins = np.array([0, *accumulate(counts[:-1])]) - firsts
        places = step.positions // size + origins.repeat(lens)
        blocks = listed.index_select(0, torch.from_numpy(places).to(step.device))
        offsets = torch.from_numpy(step.positions % size).to(step.device)
        spans = [
            SequenceSpan(end - length, end, chunk.start, first, table)
            for chunk, length, end, first, table in zip(
                step.chunks, lens, accumulate(lens), firsts, listed.split(counts), strict=True
            )
        ]
        return AttentionMetadata(blocks * size + offsets, spans, prepare(spans, spec.first_visible))

    @staticmethod
    def recorded(slots: Tensor, tables: StepTables) -> AttentionMetadata:
        """Return the metadata of a step that is recorded, whose numbers lie in buffers."""
        return AttentionMetadata(slots, (), tables)

    def finish(self, chunks: Sequence[Chunk], own: AttentionMetadata) -> None:
        """Do what is due when a step has been computed."""

    def forget(self, sequence: SequenceId) -> None:
        """Let go of what is kept of a sequence: it is gone, or has become another text."""


class ViewMetadataBuilder(FullMetadataBuilder, ABC):
    """Builds metadata of the blocks in sight where others are hidden among them."""

    def build(self, step: Step) -> AttentionMetadata:
        size = self.block_size
        lens = [len(chunk.token_ids) for chunk in step.chunks]
        tables = [step.tables[chunk.sequence, self.group.id] for chunk in step.chunks]
        spans = [
            self.span(chunk, table, (end - length, end))
            for chunk, length, end, table in zip(step.chunks, lens, accumulate(lens), tables, strict=True)
        ]
        at = torch.from_numpy(step.positions).to(step.device)
        parts = [table[own // size] for table, own in zip(tables, at.split(lens), strict=True)]
        return AttentionMetadata(
            slots=torch.cat(parts) * size + at % size, spans=spans, prepared=prepare(spans, lambda _: 0)
        )

    @abstractmethod
    def span(self, chunk: Chunk, table: Tensor, rows: tuple[int, int]) -> SequenceSpan:
        """Return one sequence's part of a step.

        Args:
            table: all block ids of the sequence by logical number, int64.
            rows: first row in the step, and the one behind the last.
        """
