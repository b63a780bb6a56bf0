"""Attention where some sequences look at what is before them through shadows of their blocks."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.formats.attention_metadata import AttentionMetadata, LayerStep, Step
from kvchat.engine.formats.full.attend import FullAttention, FullMetadataBuilder
from kvchat.engine.formats.shadow.shadows import Shadows
from kvchat.engine.formats.spec import Group
from kvchat.engine.kernels.move_blocks.bring import bring_blocks
from kvchat.engine.kernels.paged_attention import paged_attention
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, SequenceSpan
from kvchat.engine.sequences.batch_plan import Chunk


class ShadowAttention(FullAttention):
    """Attention of one layer whose blocks may lie in host memory."""

    def attention(self, step: LayerStep, args: AttentionArgs) -> Tensor:
        exact = [span for span in args.spans if span.shadow is None]
        if len(exact) == len(args.spans):
            return self._over_blocks(step.query, args)
        out = self._over_blocks(step.query, replace(args, spans=exact, prepared=None))
        pools = KVPair(self.pool.keys, self.pool.values)
        for span in args.spans:
            if span.shadow is not None:
                rows = slice(span.q_start, span.q_end)
                own = KVPair(step.new.keys[rows], step.new.values[rows])
                out[rows] = span.shadow.attend(step.layer, step.query[rows], own, pools, args.softmax_scale)
        return out

    def _over_blocks(self, query: Tensor, args: AttentionArgs) -> Tensor:
        """Return [T, H, D_v]; rows of no sequence mean nothing. Blocks that lie in host memory are brought to
        the device, those of one sequence after the other.
        """
        pools = KVPair(self.pool.keys, self.pool.values)
        if not self.pool.in_host_memory and (args.spans or args.prepared is not None):
            return paged_attention(query, *pools, args)
        out = query.new_empty(*query.shape[:2], pools.values.shape[3])
        for span in args.spans:
            keys, values = (bring_blocks(pool, span.blocks) for pool in pools)
            rows, num_queries = slice(span.q_start, span.q_end), span.q_end - span.q_start
            places = torch.arange(len(span.blocks), device=query.device)
            own = replace(span, q_start=0, q_end=num_queries, blocks=places)
            out[rows] = paged_attention(query[rows], keys, values, replace(args, spans=(own,), prepared=None))
        return out


class ShadowMetadataBuilder(FullMetadataBuilder):
    """Builds metadata with the shadows of sequences that have one; without `shadows` none has."""

    def __init__(self, group: Group, block_size: int, shadows: Shadows | None = None) -> None:
        super().__init__(group, block_size)
        self._shadows = shadows

    def build(self, step: Step) -> AttentionMetadata:
        found = super().build(step)
        spans = [self._seen(*pair) for pair in zip(step.chunks, found.spans, strict=True)]
        return replace(found, spans=spans)

    def _seen(self, chunk: Chunk, span: SequenceSpan) -> SequenceSpan:
        if chunk.shadowed is None:
            return span
        assert self._shadows is not None
        shadow = self._shadows.step(chunk.sequence, chunk.shadowed, chunk.start, span.blocks)
        return replace(span, shadow=shadow)

    def finish(self, chunks: Sequence[Chunk], own: AttentionMetadata) -> None:
        if self._shadows is not None:
            self._shadows.trim({chunk.sequence for chunk in chunks})
            self._shadows.settle()

    def forget(self, sequence: SequenceId) -> None:
        if self._shadows is not None:
            self._shadows.forget(sequence)
