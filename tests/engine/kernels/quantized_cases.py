"""Sequences over exact and quantized blocks, with no block where nobody looks.

Dimensions: T tokens in the batch, S tokens of a sequence, H query heads, H_kv key-value heads, D head size, N
    blocks, P block size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, SequenceSpan
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool
from kvchat.engine.kernels.quantized_kv.reference import quantize
from kvchat.engine.kernels.quantized_record import Code, QuantizedRecord, num_quantized

torch.set_num_threads(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedShape:
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim_k: int = 16
    head_dim_v: int = 16
    block_size: int = 16
    key_code: Code = Code.INT8
    value_code: Code = Code.INT8
    softcap: float | None = None
    has_sinks: bool = False
    dtype: torch.dtype = torch.float32

    def records(self) -> tuple[QuantizedRecord, QuantizedRecord]:
        return (
            QuantizedRecord(self.key_code, self.block_size, self.head_dim_k, is_by_channel=True),
            QuantizedRecord(self.value_code, self.block_size, self.head_dim_v, is_by_channel=False),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedCase:
    query: Tensor
    pools: KVPair
    quantized: QuantizedPool
    args: AttentionArgs
    blocks: Sequence[Tensor]

    @property
    def arguments(self) -> tuple[Tensor, KVPair, QuantizedPool, AttentionArgs, Sequence[Tensor]]:
        """As the definition takes them, and native kernels."""
        return self.query, self.pools, self.quantized, self.args, self.blocks

    def single(self, row: int) -> "QuantizedCase":
        """Return one query of the case's only sequence, as a step has it that computes nothing else."""
        (span,), (old,) = self.args.spans, self.blocks
        block_size = self.quantized.key_record.num_tokens
        position = span.position + row
        first = num_quantized(position, block_size)
        listed = span.blocks[first - span.first_block : position // block_size + 1 - span.first_block]
        return replace(
            self,
            query=self.query[row : row + 1],
            args=replace(self.args, spans=[SequenceSpan(0, 1, position, first, listed)]),
            blocks=[old[:first]],
        )


def make_quantized_case(shape: QuantizedShape, sequences: Sequence[tuple[int, int]]) -> QuantizedCase:
    """Return a case of sequences of (tokens, of which so many last ones have queries). What no query may see,
    exact or quantized, is NaN.
    """
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    size = shape.block_size
    counts = [-(-length // size) for length, _ in sequences]
    tables = torch.randperm(sum(counts) + 3, generator=generator)[: sum(counts)].split(counts)
    old_tables = torch.randperm(sum(counts) + 3, generator=generator)[: sum(counts)].split(counts)
    pools = tuple(
        torch.full((sum(counts) + 3, shape.num_kv_heads, size, dim), float("nan"))
        for dim in (shape.head_dim_k, shape.head_dim_v)
    )
    records = shape.records()
    quantized = tuple(
        torch.full((sum(counts) + 3, shape.num_kv_heads, 1, record.num_bytes), 0xFF, dtype=torch.uint8)
        for record in records
    )
    spans, blocks, row = [], [], 0
    for (length, num_new), table, old in zip(sequences, tables, old_tables, strict=True):
        first = num_quantized(length - num_new, size)
        end = num_quantized(length - 1, size)
        for pool, packed, record in zip(pools, quantized, records, strict=True):
            numbers = random(len(table) * size, shape.num_kv_heads, pool.shape[3]).to(shape.dtype).float()
            numbers[length:] = float("nan")
            by_block = numbers.unflatten(0, (-1, size)).transpose(1, 2)
            pool[table[first:]] = by_block[first:]
            packed[old[:end], :, 0] = quantize(by_block[:end], record)
        spans.append(SequenceSpan(row, row + num_new, length - num_new, first, table[first:].contiguous()))
        blocks.append(old[:end].contiguous())
        row += num_new
    return QuantizedCase(
        query=random(row, shape.num_heads, shape.head_dim_k).to(shape.dtype),
        pools=KVPair(pools[0].to(shape.dtype), pools[1].to(shape.dtype)),
        quantized=QuantizedPool(*quantized, *records),
        args=AttentionArgs(
            spans=spans,
            softmax_scale=0.4,
            softcap=shape.softcap,
            sinks=random(shape.num_heads) if shape.has_sinks else None,
        ),
        blocks=blocks,
    )
