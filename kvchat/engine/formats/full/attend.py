"""Attention over blocks of keys and values: write the new ones, attend through the block tables.

For full, sliding and chunked layers; other formats inherit what is the same for them.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from kvchat.engine.api.ids import GroupId, SequenceId
from kvchat.engine.formats.attention import AttentionCall, AttentionMetadata, LayerPool, Step
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

    def attend(
        self,
        layer: int,
        query: Tensor,
        new: KVPair,
        call: AttentionCall,
        step: Mapping[GroupId, AttentionMetadata],
        *,
        stores: bool,
    ) -> Tensor:
        """Return [T, H, D_v].

        Args:
            layer: that asks: the pool's own, or one that borrows from it.
            query: [T, H, D_k].
            new: keys [T, H_kv, D_k] and values [T, H_kv, D_v] of the step's tokens.
            step: the metadata of each group.
            stores: whether the new keys and values are to be stored.
        """
        own = step[self.pool.group]
        if stores:
            self.store(new, own.slots)
        return self.attention(layer, query, new, self.args(query, call, own), step, stores=stores)

    def store(self, new: KVPair, slots: Tensor) -> None:
        store_kv(new.keys, new.values, self.pool.keys, self.pool.values, slots)

    def args(self, query: Tensor, call: AttentionCall, own: AttentionMetadata) -> AttentionArgs:
        return AttentionArgs(
            spans=own.spans,
            prepared=own.prepared,
            softmax_scale=query.shape[2] ** -0.5 if call.scaling is None else call.scaling,
            window=self.pool.spec.window,
            chunk=self.pool.spec.chunk,
            softcap=call.softcap,
            sinks=call.sinks,
        )

    def attention(
        self,
        layer: int,
        query: Tensor,
        new: KVPair,
        args: AttentionArgs,
        step: Mapping[GroupId, AttentionMetadata],
        *,
        stores: bool,
    ) -> Tensor:
        """Return [T, H, D_v] once the new tokens are stored; see `attend`."""
        return paged_attention(query, self.pool.keys, self.pool.values, args)


class FullMetadataBuilder:
    """Builds the metadata of one group, step by step.

    Args:
        layers: the pools of all layers, for formats that change blocks after a step; None: none is changed.
    """

    def __init__(self, group: Group, block_size: int, layers: Mapping[int, LayerPool] | None = None) -> None:
        self.group = group
        self.block_size = block_size
        self.layers = layers

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
        return AttentionMetadata(blocks * size + offsets, spans, prepare(spans, spec.first_visible, size))

    @staticmethod
    def recorded(slots: Tensor, tables: StepTables) -> AttentionMetadata:
        """Return the metadata of a step that is recorded, whose numbers lie in buffers."""
        return AttentionMetadata(slots, (), tables)

    def finish(self, chunks: Sequence[Chunk], own: AttentionMetadata) -> None:
        """Do what is due when a step has been computed."""

    def forget(self, sequence: SequenceId) -> None:
        """Let go of what is kept of a sequence: it is gone, or has become another text."""
