"""Latent attention (MLA) over a paged pool: one row of latent and rope key per token, for all heads.

What a query attends to is what is stored, its own token included, so answers do not depend on how a prompt
was cut into chunks.
Source: DeepSeek-V2, arXiv 2405.04434.
"""

from typing import Protocol

import torch
from torch import Tensor

from kvchat.engine.formats.attention_metadata import LayerPool, LayerStep
from kvchat.engine.formats.full.attend import FullAttention
from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.latent_attention import latent_attention
from kvchat.engine.kernels.latent_attention.args import LatentArgs
from kvchat.engine.kernels.paged_attention.args import KVPair, StepTables
from kvchat.engine.kernels.store_kv import store_kv


class UpProjection(Protocol):
    """From a layer's latents to the keys [H, d_n, R] and values [H, d_v, R] of all heads."""

    @property
    def k_up(self) -> Tensor: ...

    @property
    def v_up(self) -> Tensor: ...


class LatentAttention(FullAttention):
    """Attention of one layer over rows of numbers.

    Args:
        projection: of the layer.
    """

    record: Fp8Record | None = None
    """How rows are packed; None: they are not."""

    def __init__(self, pool: LayerPool, projection: UpProjection) -> None:
        super().__init__(pool)
        self._projection = projection

    def attend(self, step: LayerStep) -> Tensor:
        """Store the new latents and return [T, H, d_v]; queries are [T, H, d_n + d_r]."""
        own = step.groups[self.pool.group]
        self.store(step.new, own.slots)
        assert step.call.scaling is not None, "the scale of latent attention follows from no shape"
        args = LatentArgs(
            spans=own.spans,
            softmax_scale=step.call.scaling,
            k_up=self._projection.k_up,
            v_up=self._projection.v_up,
            record=self.record,
            prepared=own.prepared if isinstance(own.prepared, StepTables) else None,
        )
        return latent_attention(step.query, self.pool.keys, args)

    def store(self, new: KVPair, slots: Tensor) -> None:
        rows = torch.cat(new, dim=2)
        store_kv(rows, rows[..., :0], self.pool.keys, self.pool.values, slots)
