"""Attention to what is left of pruned prompts, and pruning: after a step, layer by layer.

Keys carry their positions, so attention need not know how far apart two of them are, only which come before a
query. A sequence is therefore attended to as if the blocks in sight were all there are, one behind the other.
Dimensions: n tokens of a stretch that is pruned, H_kv key-value heads.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kvchat.engine.api.view import NUM_OBSERVED, REACH, SNAPKV
from kvchat.engine.cache.block_operations import Prune
from kvchat.engine.formats.attention_metadata import AttentionMetadata, LayerPool, LayerStep
from kvchat.engine.formats.full.attend import FullAttention, ViewMetadataBuilder
from kvchat.engine.formats.pruned.spec import PrunedSpec
from kvchat.engine.formats.spec import Group
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, SequenceSpan, heads_first
from kvchat.engine.kernels.prune_kv.reference import (
    attention_weights,
    difference_scores,
    gather_kept,
    norm_scores,
    observed_scores,
    select,
    with_neighbours,
)
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
    """Builds metadata, and prunes when a step is done.

    Args:
        layers: the pools of all layers; None: nothing is pruned.
    """

    def __init__(self, group: Group, block_size: int, layers: Mapping[int, LayerPool] | None = None) -> None:
        super().__init__(group, block_size)
        assert isinstance(group.spec, PrunedSpec)
        self._rule = group.spec.rule
        self._layers = {} if layers is None else {layer: layers[layer] for layer in group.layers}

    def span(self, chunk: Chunk, table: Tensor, rows: tuple[int, int]) -> SequenceSpan:
        """Return one sequence's part of a step, where all its queries miss the same blocks."""
        num_blocks = -(-chunk.end // self.block_size)
        parts: list[Tensor] = []
        at = lost = 0
        for first, end in dict(chunk.hidden_ranges).get(self.group.id, ()):
            parts.append(table[at:first])
            at, lost = end, lost + end - first
        blocks = torch.cat([*parts, table[at:num_blocks]]) if parts else table[:num_blocks]
        is_watched = self._layers and chunk.prunes and self._rule == SNAPKV
        position = chunk.start - lost * self.block_size
        return SequenceSpan(rows[0], rows[1], position, 0, blocks, watched={} if is_watched else None)

    def finish(self, chunks: Sequence[Chunk], own: AttentionMetadata) -> None:
        for chunk, span in zip(chunks, own.spans, strict=True):
            for prune in chunk.prunes:
                if prune.group == self.group.id:
                    assert self._layers
                    self._prune(prune, span)

    def _prune(self, prune: Prune, span: SequenceSpan) -> None:
        """Fill the targets behind a step in which the sequence saw `span`; the sources stay as they are."""
        for layer, pool in self._layers.items():
            sources, targets = (
                torch.tensor(blocks, device=pool.keys.device) for blocks in (prune.sources, prune.targets)
            )
            scores = self._scores(pool, layer, sources, span)
            kept = select(scores, len(targets) * pool.keys.shape[2])
            for part in (pool.keys, pool.values):
                gather_kept(part, sources, targets, kept)

    def _scores(self, pool: LayerPool, layer: int, sources: Tensor, span: SequenceSpan) -> Tensor:
        """Return how much each token of a stretch is wanted [H_kv, n]."""
        if self._rule != SNAPKV:
            keys = heads_first(pool.keys[sources])
            return norm_scores(keys) if self._rule == "knorm" else difference_scores(keys)
        assert span.watched is not None
        query, args = span.watched[layer]
        block_size = pool.keys.shape[2]
        end = span.position + span.q_end - span.q_start
        keys = heads_first(pool.keys[span.blocks])[:, :end]
        weights = attention_weights(query, keys, args)
        start = int((span.blocks == sources[0]).nonzero()[0, 0]) * block_size
        wanted = observed_scores(weights, keys.shape[0], start, start + len(sources) * block_size)
        return with_neighbours(wanted, REACH)
