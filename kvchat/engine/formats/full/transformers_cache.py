"""Exact attention for models that attend by themselves: a cache that stores in blocks and returns whole rows.

For classes without transformers' attention interface, and those whose attention computes something that no
backend here knows. One sequence at a time; the model applies its own masks, biases and windows to all keys
and values from the first position on. Dimensions: T new tokens, S tokens in all, H_kv key-value heads, P
block size, D head size.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.attention_metadata import AttentionMetadata, LayerPool
from kvchat.engine.kernels.paged_attention.args import SequenceSpan, heads_first
from kvchat.engine.kernels.store_kv import store_kv


class TransformersCache(Cache):
    """Stands in for transformers' cache of one sequence; `begin` says which."""

    def __init__(self, layers: Mapping[int, LayerPool]) -> None:
        super().__init__(layers=[])
        self._pools = layers
        self._slots: dict[GroupId, Tensor] = {}
        self._spans: dict[GroupId, SequenceSpan] = {}
        self._start = 0

    def begin(self, step: Mapping[GroupId, AttentionMetadata], number: int) -> None:
        """Take the batch's sequence `number`, whose tokens are computed next."""
        for group, part in step.items():
            if part.spans:
                span = self._spans[group] = part.spans[number]
                self._slots[group] = part.slots[span.q_start : span.q_end]
                self._start = span.position

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values [1, H_kv, T, D] and return all of the sequence [1, H_kv, S, D]."""
        pool = self._pools[layer_idx]
        span, slots = self._spans[pool.group], self._slots[pool.group]
        store_kv(rows_of(key_states), rows_of(value_states), pool.keys, pool.values, slots)
        end = span.position + key_states.shape[2]
        keys, values = (
            heads_first(part.index_select(0, span.blocks))[None, :, :end] for part in (pool.keys, pool.values)
        )
        return keys.to(key_states.dtype), values.to(value_states.dtype)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._start

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._start + query_length, 0


def rows_of(heads_first: Tensor) -> Tensor:
    """Return [1, H, T, D] as [T, H, D]."""
    return heads_first[0].transpose(0, 1)
