"""Attention over paged keys and values: write the new ones, attend through the block tables.

Where a layer is quantised, blocks that have become old with a step are quantised before its queries look.

Stands behind the attention modules of one model. The runner sets `step` before each forward pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.quantized.spec import QuantizedSpec
from kvchat.engine.formats.spec import CacheSpec, Group
from kvchat.engine.kernels.move_blocks.bring import bring_blocks
from kvchat.engine.kernels.paged_attention import paged_attention
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, Prepared, SequenceSpan
from kvchat.engine.kernels.quantized_attention import quantize_blocks, quantized_attention
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool, QuantizedStep
from kvchat.engine.kernels.store_kv import store_kv


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """Arguments of one attention layer besides queries, keys and values.

    Args:
        scaling: factor of the query-key products; None: D_k ** -0.5.
        window: tokens a query sees, itself included; None: all.
        softcap: bound of the scores, or None.
        sinks: one extra logit per query head [H], or None.
        unsupported: names of arguments with a value that no backend honours.
        is_causal: whether the layer attends to the past only.
        mask: the model's own mask, where one was asked for.
    """

    scaling: float | None
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    unsupported: tuple[str, ...] = ()
    is_causal: bool = True
    mask: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where one step's tokens go and what they see, in one group.

    Args:
        slots: slot of every new token [T], int64; none where tokens have no place of their own.
        spans: the sequences of the batch.
        prepared: the same in the form that is computed with.
        quantized: of groups of quantised blocks: what is read and what is written there.
    """

    slots: Tensor
    spans: Sequence[SequenceSpan]
    prepared: Prepared | None = None
    quantized: QuantizedStep | None = None


@dataclass(frozen=True, slots=True)
class QuantizedLayerPool:
    """One layer's quantized blocks, and the group that has them."""

    group: GroupId
    pool: QuantizedPool


@dataclass(frozen=True, slots=True)
class LayerPool:
    """One layer's part of its group's pool.

    Args:
        keys, values: [N, H_kv, P, D_k] and [N, H_kv, P, D_v].
        quantized: the older blocks of a quantized layer.
    """

    group: GroupId
    spec: CacheSpec
    keys: Tensor
    values: Tensor
    quantized: QuantizedLayerPool | None = None


def layer_pools(
    groups: Sequence[Group], parts: Mapping[GroupId, tuple[Tensor, Tensor]]
) -> dict[int, LayerPool]:
    """Return each layer's part of its group's pool, with what is quantized of it.

    Args:
        parts: keys [L, N, H_kv, P, D_k] and values [L, N, H_kv, P, D_v] of each group.
    """
    quantized: dict[int, QuantizedLayerPool] = {}
    for group in groups:
        if isinstance(group.spec, QuantizedSpec):
            records = group.spec.key_record, group.spec.value_record
            for layer, keys, values in zip(group.layers, *parts[group.id], strict=True):
                quantized[layer] = QuantizedLayerPool(group.id, QuantizedPool(keys, values, *records))
    return {
        layer: LayerPool(group.id, group.spec, keys, values, quantized.get(layer))
        for group in groups
        if group.quantized_from is None
        for layer, keys, values in zip(group.layers, *parts[group.id], strict=True)
    }


class PagedAttention:
    """Backend of full, sliding and chunked layers, exact or quantised.

    Args:
        layers: the pools of the layers that store keys and values.
        borrowed: layers that attend to what another layer has stored in the same pass, each with that layer.
    """

    def __init__(self, layers: Mapping[int, LayerPool], borrowed: Mapping[int, int] | None = None) -> None:
        self._layers = layers
        self._borrowed = borrowed or {}
        self.step: Mapping[GroupId, AttentionMetadata] = {}

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
            window=spec.window,
            chunk=spec.chunk,
            softcap=call.softcap,
            sinks=call.sinks,
        )
        for span in step.spans:
            if span.watch is not None:
                span.watch.take(layer, query[span.q_start : span.q_end], args)
        if any(span.shadow is not None for span in step.spans):
            return _shadowed(layer, query, KVPair(key, value), pool, args)
        if spec.is_remote:
            return _brought(query, KVPair(pool.keys, pool.values), args)
        if pool.quantized is None:
            return paged_attention(query, pool.keys, pool.values, args)
        old = self.step[pool.quantized.group].quantized
        assert old is not None
        if layer not in self._borrowed:
            quantize_blocks(pool.keys, pool.values, pool.quantized.pool, old)
        return quantized_attention(query, KVPair(pool.keys, pool.values), pool.quantized.pool, args, old)


def _shadowed(layer: int, query: Tensor, new: KVPair, pool: LayerPool, args: AttentionArgs) -> Tensor:
    """Return [T, H, D_v] where some sequences answer from shadows of their blocks.

    Args:
        query, new: queries, and keys and values, of the step's tokens.
    """
    pools = KVPair(pool.keys, pool.values)
    exact = [span for span in args.spans if span.shadow is None]
    own_args = replace(args, spans=exact, prepared=None)
    if exact and not pool.spec.is_remote:
        out = paged_attention(query, *pools, own_args)
    else:
        out = _brought(query, pools, own_args)
    for span in args.spans:
        if span.shadow is not None:
            rows = slice(span.q_start, span.q_end)
            own = KVPair(new.keys[rows], new.values[rows])
            out[rows] = span.shadow.attend(layer, query[rows], own, pools, args.softmax_scale)
    return out


def _brought(query: Tensor, pools: KVPair, args: AttentionArgs) -> Tensor:
    """Return [T, H, D_v] where blocks lie in host memory: those of one sequence after the other are brought
    to the device, and its queries attend there. Rows of no sequence are left as they are.
    """
    out = query.new_empty(*query.shape[:2], pools.values.shape[3])
    for span in args.spans:
        keys, values = (bring_blocks(pool, span.blocks) for pool in pools)
        rows, num_queries = slice(span.q_start, span.q_end), span.q_end - span.q_start
        places = torch.arange(len(span.blocks), device=query.device)
        own = replace(span, q_start=0, q_end=num_queries, blocks=places)
        out[rows] = paged_attention(query[rows], keys, values, replace(args, spans=(own,), prepared=None))
    return out
