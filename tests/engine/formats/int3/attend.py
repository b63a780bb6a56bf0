"""Attention over records of 3 bits, which are read as numbers sequence by sequence."""

from dataclasses import replace

import torch
from torch import Tensor

from kvchat.engine.formats.attention_metadata import LayerStep
from kvchat.engine.formats.full.attend import FullAttention
from kvchat.engine.kernels.paged_attention import paged_attention
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair
from kvchat.engine.kernels.store_kv import store_kv
from tests.engine.formats.int3.codec import pack, unpack


class Int3Attention(FullAttention):
    """Attention of one layer."""

    def store(self, new: KVPair, slots: Tensor) -> None:
        store_kv(pack(new.keys), pack(new.values), self.pool.keys, self.pool.values, slots)

    def attention(self, step: LayerStep, args: AttentionArgs) -> Tensor:
        spec = self.pool.spec
        out = step.query.new_empty(*step.query.shape[:2], spec.head_dim_v)
        for span in args.spans:
            keys = unpack(self.pool.keys[span.blocks], spec.head_dim_k).to(step.query.dtype)
            values = unpack(self.pool.values[span.blocks], spec.head_dim_v).to(step.query.dtype)
            rows = slice(span.q_start, span.q_end)
            places = torch.arange(len(span.blocks))
            own = replace(span, q_start=0, q_end=span.q_end - span.q_start, blocks=places)
            out[rows] = paged_attention(
                step.query[rows], keys, values, replace(args, spans=(own,), prepared=None)
            )
        return out
