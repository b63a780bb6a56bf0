"""Latent attention (MLA) over a paged pool: one row of latent and rope key per token, for all heads.

Rows are numbers (exact) or 8-bit records (approximate), as the layer's spec says; what a query attends to is
what is stored, its own token included, so answers do not depend on how a prompt was cut into chunks.
Stands behind the attention modules of one model; layers that keep keys and values go on to paged attention.
Source: DeepSeek-V2, arXiv 2405.04434.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from kvchat.engine.formats.fp8_latent.spec import Fp8LatentSpec
from kvchat.engine.formats.full.attend import AttentionCall, LayerPool, PagedAttention
from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.latent_attention import latent_attention
from kvchat.engine.kernels.latent_attention.args import LatentArgs
from kvchat.engine.kernels.latent_record import store_records
from kvchat.engine.kernels.paged_attention.args import StepTables
from kvchat.engine.kernels.store_kv import store_kv


class UpProjection(Protocol):
    """From a layer's latents to the keys [H, d_n, R] and values [H, d_v, R] of all heads."""

    @property
    def k_up(self) -> Tensor: ...

    @property
    def v_up(self) -> Tensor: ...


class LatentAttention(PagedAttention):
    """Backend of models with latent layers.

    Args:
        layers: the pools of all layers.
        projections: of the layers that keep latents.
    """

    def __init__(self, layers: Mapping[int, LayerPool], projections: Mapping[int, UpProjection]) -> None:
        super().__init__(layers)
        self._projections = projections

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Store the new latents and return [T, H, d_v].

        Args:
            query: [T, H, d_n + d_r].
            key: latents [T, 1, R].
            value: rope keys [T, 1, d_r].
        """
        projection = self._projections.get(layer)
        if projection is None:
            return super().attend(layer, query, key, value, call)
        pool = self._layers[layer]
        step = self.step[pool.group]
        record = _store(pool, key, value, step.slots)
        assert call.scaling is not None, "the scale of latent attention follows from no shape"
        args = LatentArgs(
            spans=step.spans,
            softmax_scale=call.scaling,
            k_up=projection.k_up,
            v_up=projection.v_up,
            record=record,
            prepared=step.prepared if isinstance(step.prepared, StepTables) else None,
        )
        return latent_attention(query, pool.keys, args)


def _store(pool: LayerPool, latents: Tensor, rope_keys: Tensor, slots: Tensor) -> Fp8Record | None:
    """Store new latents [T, 1, R] and rope keys [T, 1, d_r] as the layer's spec says.

    Returns:
        How the pool is read; None: its rows are numbers.
    """
    if isinstance(pool.spec, Fp8LatentSpec):
        record = pool.spec.record
        store_records(latents[:, 0], rope_keys[:, 0], pool.keys, slots, record)
        return record
    rows = torch.cat([latents, rope_keys], dim=2)
    store_kv(rows, rows[..., :0], pool.keys, pool.values, slots)
    return None
