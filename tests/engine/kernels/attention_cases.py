"""Ragged batches over block pools with permuted tables, and their dense definition in float64.

Dimensions: T tokens in the batch, S tokens of a sequence, H query heads, H_kv key-value heads, D head size, N
    blocks, P block size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import AttentionArgs, SequenceSpan, StepTables

torch.set_num_threads(1)

LENGTHS = (1, 15, 16, 17, 63, 64, 65, 130)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`num_new` of a sequence's tokens have queries: all (None), or the last few."""

    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim_k: int = 8
    head_dim_v: int = 8
    block_size: int = 16
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    num_new: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Queries [T, H, D_k], pools, arguments; and each sequence's own keys and values [S, H_kv, D]."""

    query: Tensor
    k_pool: Tensor
    v_pool: Tensor
    args: AttentionArgs
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, AttentionArgs]:
        """As every form of attention takes them."""
        return self.query, self.k_pool, self.v_pool, self.args

    def single(self, span: SequenceSpan) -> "Case":
        """Return one of the sequences, as a step has it that computes nothing else."""
        moved = span.moved(0)
        return replace(
            self, query=self.query[span.q_start : span.q_end], args=replace(self.args, spans=[moved])
        )

    def to(self, dtype: torch.dtype) -> "Case":
        """Return the case with inputs of another dtype, arguments included."""
        sinks = self.args.sinks
        return replace(
            self,
            query=self.query.to(dtype),
            k_pool=self.k_pool.to(dtype),
            v_pool=self.v_pool.to(dtype),
            args=replace(self.args, sinks=None if sinks is None else sinks.to(dtype)),
        )


def make_case(shape: Shape, lengths: Sequence[int] = LENGTHS) -> Case:
    """Return a float64 case. Every slot that no query may see is NaN."""
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    keys = tuple(random(length, shape.num_kv_heads, shape.head_dim_k) for length in lengths)
    values = tuple(random(length, shape.num_kv_heads, shape.head_dim_v) for length in lengths)
    num_blocks = [-(-length // shape.block_size) for length in lengths]
    tables = torch.randperm(sum(num_blocks) + 3, generator=generator)[: sum(num_blocks)].split(num_blocks)
    spans = make_spans(shape, lengths, tables)
    sinks = random(shape.num_heads) if shape.has_sinks else None
    return Case(
        query=random(spans[-1].q_end, shape.num_heads, shape.head_dim_k),
        k_pool=fill_pool(keys, spans, shape, sum(num_blocks) + 3),
        v_pool=fill_pool(values, spans, shape, sum(num_blocks) + 3),
        args=AttentionArgs(
            spans=spans,
            softmax_scale=0.4,
            window=shape.window,
            chunk=shape.chunk,
            softcap=shape.softcap,
            sinks=sinks,
        ),
        keys=keys,
        values=values,
    )


def make_spans(shape: Shape, lengths: Sequence[int], tables: Sequence[Tensor]) -> list[SequenceSpan]:
    """Return spans whose tables begin with the first block that some query sees."""
    spans: list[SequenceSpan] = []
    row = 0
    for length, table in zip(lengths, tables, strict=True):
        num_new = min(length, shape.num_new or length)
        position = length - num_new
        first_block = first_visible(shape, position) // shape.block_size
        spans.append(SequenceSpan(row, row + num_new, position, first_block, table[first_block:]))
        row += num_new
    return spans


def first_visible(shape: Shape, position: int) -> int:
    """Return the first position that a query at `position` sees."""
    if shape.chunk is not None:
        return position // shape.chunk * shape.chunk
    return 0 if shape.window is None else max(0, position - shape.window + 1)


def fill_pool(parts: Sequence[Tensor], spans: Sequence[SequenceSpan], shape: Shape, size: int) -> Tensor:
    """Return [N, H_kv, P, D] with each sequence's visible tokens in its blocks and NaN everywhere else."""
    pool = torch.full((size, shape.num_kv_heads, shape.block_size, parts[0].shape[2]), float("nan"))
    pool = pool.to(torch.float64)
    for part, span in zip(parts, spans, strict=True):
        for position in range(first_visible(shape, span.position), len(part)):
            block = span.blocks[position // shape.block_size - span.first_block]
            pool[block, :, position % shape.block_size] = part[position]
    return pool


def filled_up(known: StepTables, num_rows: int, most_visible: int) -> StepTables:
    """Return the tables of single queries filled up to so many rows, and wider; poisoned behind."""
    num = len(known.singles)

    def filled(numbers: Tensor, value: int) -> Tensor:
        more = torch.full((num_rows - num, *numbers.shape[1:]), value, dtype=torch.int32)
        return torch.cat([numbers, more])

    wide = torch.cat([known.tables, torch.full((num, 3), 2_147_480_000, dtype=torch.int32)], dim=1)
    return StepTables(
        q_starts=torch.arange(num_rows, dtype=torch.int32),
        q_lens=filled(known.q_lens, 0),
        positions=filled(known.positions, 0),
        first_blocks=filled(known.first_blocks, 0),
        tables=filled(wide, 2_147_480_000),
        singles=tuple(range(num_rows)),
        others=(),
        most_visible=most_visible,
    )


def tables_of(length: int, position: int, first_block: int, blocks: Sequence[int]) -> StepTables:
    """Return the tables of one sequence: its queries, the first one's position, and its blocks."""
    one = [torch.tensor([number], dtype=torch.int32) for number in (0, length, position, first_block)]
    return StepTables(
        q_starts=one[0],
        q_lens=one[1],
        positions=one[2],
        first_blocks=one[3],
        tables=torch.tensor([blocks], dtype=torch.int32),
        singles=(0,),
        others=(),
        most_visible=1,
    )


def dense(case: Case) -> Tensor:
    """Return the attention of all queries from whole matrices with a mask [T, H, D_v], float64."""
    out = [
        _dense_sequence(case.query[span.q_start : span.q_end], keys, values, span.position, case.args)
        for span, keys, values in zip(case.args.spans, case.keys, case.values, strict=True)
    ]
    return torch.cat(out)


def _dense_sequence(
    query: Tensor, keys: Tensor, values: Tensor, position: int, args: AttentionArgs
) -> Tensor:
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,shd->hqs", query, keys) * args.softmax_scale
    if args.softcap is not None:
        scores = torch.tanh(scores / args.softcap) * args.softcap
    at = torch.arange(position, position + len(query))[:, None]
    seen = torch.arange(len(keys))[None]
    visible = seen <= at
    if args.window is not None:
        visible &= seen > at - args.window
    if args.chunk is not None:
        visible &= seen // args.chunk == at // args.chunk
    weights = torch.where(visible, scores.exp(), 0.0)
    total = weights.sum(dim=2, keepdim=True)
    if args.sinks is not None:
        total = total + args.sinks.exp()[:, None, None]
    return torch.einsum("hqs,shd->qhd", weights / total, values)
