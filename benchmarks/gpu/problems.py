"""Sequences in blocks of a pool, in an order that no two of them share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.gpu.stage import Stage
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, SequenceSpan
from kvchat.engine.kernels.paged_attention.step_tables import step_tables
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool, QuantizedStep
from kvchat.engine.kernels.quantized_kv.reference import quantize
from kvchat.engine.kernels.quantized_record import Code, QuantizedRecord, num_quantized

BLOCK_SIZE = 64


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, key-value heads, head size."""

    query: int
    kv: int
    dim: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Arguments of one call."""

    query: Tensor
    k_pool: Tensor
    v_pool: Tensor
    args: AttentionArgs

    def on_cpu(self) -> "Attention":
        """Return the same for the definition, which computes in float32 there."""
        spans = [replace(span, blocks=span.blocks.cpu()) for span in self.args.spans]
        sinks = None if self.args.sinks is None else self.args.sinks.cpu()
        args = replace(self.args, spans=spans, prepared=None, sinks=sinks)
        return Attention(self.query.cpu(), self.k_pool.cpu(), self.v_pool.cpu(), args)


def attention_of(
    stage: Stage,
    heads: Heads,
    lengths: Sequence[int],
    num_new: int | None,
    dtype: torch.dtype,
    **scores: object,
) -> Attention:
    """Return sequences whose last `num_new` tokens have queries (None: all); what nobody may read is NaN."""
    counts = [-(-length // BLOCK_SIZE) for length in lengths]
    spans = spans_of(stage, lengths, num_new)
    pools = [stage.random(sum(counts) + 2, heads.kv, BLOCK_SIZE, heads.dim, dtype=dtype) for _ in range(2)]
    for span, length in zip(spans, lengths, strict=True):
        if length % BLOCK_SIZE:
            for pool in pools:
                pool[span.blocks[-1], :, length % BLOCK_SIZE :] = float("nan")
    args = AttentionArgs(spans, heads.dim**-0.5, **scores)  # type: ignore[arg-type]
    args = replace(args, prepared=step_tables(spans, args.first_visible))
    query = stage.random(spans[-1].q_end, heads.query, heads.dim, dtype=dtype)
    return Attention(query, pools[0], pools[1], args)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedAttention:
    """Arguments of one call over quantised blocks, and the bytes of keys and values that it must read."""

    query: Tensor
    pools: KVPair
    quantized: QuantizedPool
    args: AttentionArgs
    step: QuantizedStep
    num_bytes: int


def quantized_of(
    stage: Stage, heads: Heads, lengths: Sequence[int], codes: tuple[Code, Code], dtype: torch.dtype
) -> QuantizedAttention:
    """Return sequences with one query each whose blocks are quantised, but for the last ones."""
    case = attention_of(stage, heads, lengths, 1, dtype)
    spans = case.args.spans
    records = [
        QuantizedRecord(code, BLOCK_SIZE, heads.dim, by)
        for code, by in zip(codes, (True, False), strict=True)
    ]
    # Blocks share the records of one: what stands in them costs nothing.
    one = stage.random(1, heads.kv, BLOCK_SIZE, heads.dim, dtype=dtype)
    packed = [quantize(one, record)[:, :, None].repeat(len(case.k_pool), 1, 1, 1) for record in records]
    counts = [num_quantized(span.position, BLOCK_SIZE) for span in spans]
    old = [span.blocks[:count] for span, count in zip(spans, counts, strict=True)]
    nothing = old[0][:0]
    block_bytes = heads.kv * sum(record.num_bytes for record in records)
    token_bytes = 2 * heads.kv * heads.dim * case.k_pool.element_size()
    num_exact = sum(lengths) - BLOCK_SIZE * sum(counts)
    return QuantizedAttention(
        query=case.query,
        pools=KVPair(case.k_pool, case.v_pool),
        quantized=QuantizedPool(packed[0], packed[1], records[0], records[1]),
        args=case.args,
        step=QuantizedStep(old, nothing, nothing),
        num_bytes=block_bytes * sum(counts) + token_bytes * num_exact,
    )


def spans_of(stage: Stage, lengths: Sequence[int], num_new: int | None) -> list[SequenceSpan]:
    counts = [-(-length // BLOCK_SIZE) for length in lengths]
    order = torch.randperm(sum(counts) + 2, device=stage.device)[: sum(counts)]
    spans: list[SequenceSpan] = []
    row = 0
    for length, blocks in zip(lengths, order.split(counts), strict=True):
        num = min(length, num_new or length)
        spans.append(SequenceSpan(row, row + num, length - num, 0, blocks))
        row += num
    return spans
