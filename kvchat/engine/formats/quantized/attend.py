"""Attention where recent blocks are exact and older ones quantized: a step quantizes what it makes old."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvchat.engine.formats.attention_metadata import AttentionMetadata, LayerPool, LayerStep, Step
from kvchat.engine.formats.full.attend import FullAttention, FullMetadataBuilder
from kvchat.engine.formats.quantized.spec import QuantizedSpec
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, StepTables
from kvchat.engine.kernels.quantized_attention import quantize_blocks, quantized_attention
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool, QuantizedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedMetadata(AttentionMetadata):
    """A step's part in quantized blocks.

    Args:
        blocks: what is read, and what is written.
    """

    blocks: QuantizedStep

    def part(self, numbers: Sequence[int], index: Tensor) -> "QuantizedMetadata":
        own = self.blocks
        sources, targets = (listed.split(list(own.counts)) for listed in (own.sources, own.targets))
        blocks = QuantizedStep(
            [own.blocks[number] for number in numbers],
            torch.cat([sources[number] for number in numbers]),
            torch.cat([targets[number] for number in numbers]),
            counts=[own.counts[number] for number in numbers],
        )
        return QuantizedMetadata(self.slots, (), blocks=blocks)


class ResidualAttention(FullAttention):
    """Attention of one layer over its exact blocks and the quantized ones before them."""

    def __init__(self, pool: LayerPool) -> None:
        super().__init__(pool)
        assert pool.derived is not None
        self._old_group = pool.derived.group
        self._old_pool = quantized_pool(pool.derived)

    def attention(self, step: LayerStep, args: AttentionArgs) -> Tensor:
        old, pools = old_blocks(step.groups[self._old_group]), KVPair(self.pool.keys, self.pool.values)
        if step.stores:
            quantize_blocks(*pools, self._old_pool, old)
        return quantized_attention(step.query, pools, self._old_pool, args, old)


class QuantizedMetadataBuilder(FullMetadataBuilder):
    """Says which quantized blocks a step reads, and which exact ones become old with it."""

    def build(self, step: Step) -> QuantizedMetadata:
        source, size = self.group.source, self.block_size
        assert source is not None
        nothing = torch.zeros(0, dtype=torch.long, device=step.device)
        blocks, sources = [], []
        for chunk in step.chunks:
            first, end = (self.group.num_blocks(length, size) for length in (chunk.start, chunk.end))
            blocks.append(step.tables.get((chunk.sequence, self.group.id), nothing)[:end])
            sources.append(step.tables[chunk.sequence, source][first:end])
        targets = [listed[len(listed) - len(new) :] for listed, new in zip(blocks, sources, strict=True)]
        counts = [len(new) for new in sources]
        old = QuantizedStep(blocks, torch.cat(sources), torch.cat(targets), counts=counts)
        return QuantizedMetadata(nothing, (), blocks=old)

    @staticmethod
    def recorded(slots: Tensor, tables: StepTables) -> QuantizedMetadata:
        """Return the metadata of a step that quantizes nothing."""
        nothing = slots.new_empty(0, dtype=torch.long)
        return QuantizedMetadata(nothing, (), blocks=QuantizedStep((), nothing, nothing, tables.tables))


def quantized_pool(pool: LayerPool) -> QuantizedPool:
    """Return one layer's quantized blocks with how they are read."""
    assert isinstance(pool.spec, QuantizedSpec)
    return QuantizedPool(pool.keys, pool.values, pool.spec.key_record, pool.spec.value_record)


def old_blocks(metadata: AttentionMetadata) -> QuantizedStep:
    """Return a step's part in a group of quantized blocks."""
    assert isinstance(metadata, QuantizedMetadata)
    return metadata.blocks
