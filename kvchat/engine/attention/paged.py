"""Exact attention over paged keys and values: write the new ones, attend through the block tables.

Stands behind the attention modules of one model. The runner sets `step` before each forward pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kvchat.engine.api.ids import GroupId
from kvchat.engine.attention.call import AttentionCall
from kvchat.engine.cache.spec import ChunkedSpec, FullSpec, SlidingSpec
from kvchat.engine.kernels.paged_attention import paged_attention
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, Prepared, SequenceSpan
from kvchat.engine.kernels.store_kv import store_kv


@dataclass(frozen=True, slots=True)
class GroupStep:
    """Where one step's tokens go and what they see, in one group.

    Args:
        slots: slot of every new token [T], int64.
        spans: the sequences of the batch.
        prepared: the same in the form that is computed with.
    """

    slots: Tensor
    spans: Sequence[SequenceSpan]
    prepared: Prepared | None = None


class LayerPool(Protocol):
    """One layer's keys [N, H_kv, P, D_k] and values [N, H_kv, P, D_v]."""

    @property
    def group(self) -> GroupId: ...

    @property
    def spec(self) -> FullSpec: ...

    @property
    def keys(self) -> Tensor: ...

    @property
    def values(self) -> Tensor: ...


class PagedAttention:
    """Backend of full, sliding and chunked layers.

    Args:
        layers: the pools of the layers that store keys and values.
        borrowed: layers that attend to what another layer has stored in the same pass, each with that layer.
    """

    def __init__(self, layers: Mapping[int, LayerPool], borrowed: Mapping[int, int] | None = None) -> None:
        self._layers = layers
        self._borrowed = borrowed or {}
        self.step: Mapping[GroupId, GroupStep] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Store the new keys and values of `layer`, unless it borrows them, and return [T, H, D_v]."""
        pool = self._layers[self._borrowed.get(layer, layer)]
        step = self.step[pool.group]
        if layer not in self._borrowed:
            store_kv(key, value, pool.keys, pool.values, step.slots)
        spec = pool.spec
        args = AttentionArgs(
            spans=step.spans,
            prepared=step.prepared,
            softmax_scale=query.shape[2] ** -0.5 if call.scaling is None else call.scaling,
            window=spec.window_len if isinstance(spec, SlidingSpec) else None,
            chunk=spec.chunk_len if isinstance(spec, ChunkedSpec) else None,
            softcap=call.softcap,
            sinks=call.sinks,
        )
        return paged_attention(query, pool.keys, pool.values, args)
