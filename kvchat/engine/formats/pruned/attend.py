"""Attention to what is left of pruned prompts.

Keys carry their positions, so attention need not know how far apart two of them are, only which come before a
query. A sequence is therefore attended to as if the blocks in sight were all there are, one behind the other.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kvchat.engine.api.view import NUM_OBSERVED
from kvchat.engine.formats.attention_metadata import AttentionMetadata, LayerPool, LayerStep
from kvchat.engine.formats.full.attend import FullAttention, ViewMetadataBuilder
from kvchat.engine.formats.pruned.pruner import Pruner
from kvchat.engine.formats.spec import Group
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, SequenceSpan
from kvchat.engine.sequences.batch_plan import Chunk


class PrunedAttention(FullAttention):
    """Attention of one layer, which shows its queries to whoever is going to prune by them."""

    def attention(self, step: LayerStep, args: AttentionArgs) -> Tensor:
        for span in args.spans:
            if span.watched is not None:
                query = step.query[span.q_start : span.q_end]
                span.watched[step.layer] = query[-NUM_OBSERVED:].clone(), args
        return super().attention(step, args)


class PrunedMetadataBuilder(ViewMetadataBuilder):
    """Builds metadata, and prunes when a step is done."""

    def __init__(self, group: Group, block_size: int, layers: Mapping[int, LayerPool] | None = None) -> None:
        super().__init__(group, block_size)
        self._pruner = None if layers is None else Pruner(group, layers)

    def span(self, chunk: Chunk, table: Tensor, rows: tuple[int, int]) -> SequenceSpan:
        """Return one sequence's part of a step, where all its queries miss the same blocks."""
        num_blocks = -(-chunk.end // self.block_size)
        parts: list[Tensor] = []
        at = lost = 0
        for first, end in dict(chunk.hidden_ranges).get(self.group.id, ()):
            parts.append(table[at:first])
            at, lost = end, lost + end - first
        blocks = torch.cat([*parts, table[at:num_blocks]]) if parts else table[:num_blocks]
        span = SequenceSpan(rows[0], rows[1], chunk.start - lost * self.block_size, 0, blocks)
        if not chunk.prunes or self._pruner is None:
            return span
        return self._pruner.watched(span)

    def finish(self, chunks: Sequence[Chunk], own: AttentionMetadata) -> None:
        for chunk, span in zip(chunks, own.spans, strict=True):
            for prune in chunk.prunes:
                if prune.group == self.group.id:
                    assert self._pruner is not None
                    self._pruner.prune(prune, span)
