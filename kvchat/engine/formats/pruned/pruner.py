"""Pruner: scores a range of tokens after a step, layer by layer, and gathers those that stay.

Dimensions: Q observing queries, S tokens in sight, H query heads, H_kv key-value heads, D head size, P block
size.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kvchat.engine.api.view import REACH, SNAPKV
from kvchat.engine.cache.block_operations import Prune
from kvchat.engine.formats.attention_metadata import LayerPool
from kvchat.engine.formats.pruned.spec import PrunedSpec
from kvchat.engine.formats.spec import Group
from kvchat.engine.kernels.paged_attention.args import SequenceSpan, heads_first
from kvchat.engine.kernels.prune_kv.reference import (
    attention_weights,
    difference_scores,
    gather_kept,
    norm_scores,
    observed_scores,
    select,
    with_neighbours,
)


class Pruner:
    """Prunes the layers of one group.

    Args:
        group: a pruned one.
        layers: the pools of all layers.
    """

    def __init__(self, group: Group, layers: Mapping[int, LayerPool]) -> None:
        self._layers = {layer: layers[layer] for layer in group.layers}
        assert isinstance(group.spec, PrunedSpec)
        self._rule = group.spec.rule

    def watched(self, span: SequenceSpan) -> SequenceSpan:
        """Return a sequence's part of a step that ends with pruning, so that its queries are kept."""
        return replace(span, watched={}) if self._rule == SNAPKV else span

    def prune(self, prune: Prune, span: SequenceSpan) -> None:
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
