"""Exact attention over paged keys and values: write the new ones, attend through the block tables.

Stands behind the attention modules of one model. The runner sets `step` before each forward pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kvchat.engine.api.ids import GroupId
from kvchat.engine.attention.call import AttentionCall
from kvchat.engine.kernels.paged_attention import paged_attention
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, SequenceSpan
from kvchat.engine.kernels.store_kv import store_kv


@dataclass(frozen=True, slots=True)
class GroupStep:
    """Where one step's tokens go and what they see, in one group.

    Args:
        slots: slot of every new token [T], int64.
        spans: the sequences of the batch.
    """

    slots: Tensor
    spans: Sequence[SequenceSpan]


class LayerPool(Protocol):
    """One layer's keys [N, H_kv, P, D_k] and values [N, H_kv, P, D_v]."""

    @property
    def group(self) -> GroupId: ...

    @property
    def keys(self) -> Tensor: ...

    @property
    def values(self) -> Tensor: ...


class PagedAttention:
    """Backend of full and sliding-window layers."""

    def __init__(self, layers: Mapping[int, LayerPool]) -> None:
        self._layers = layers
        self.step: Mapping[GroupId, GroupStep] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Store the new keys and values of `layer` and return [T, H, D_v]."""
        pool = self._layers[layer]
        step = self.step[pool.group]
        store_kv(key, value, pool.keys, pool.values, step.slots)
        args = AttentionArgs(
            spans=step.spans,
            softmax_scale=query.shape[2] ** -0.5 if call.scaling is None else call.scaling,
            window=call.window,
            softcap=call.softcap,
            sinks=call.sinks,
        )
        return paged_attention(query, pool.keys, pool.values, args)
