"""Arguments of paged attention besides queries and pools."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from torch import Tensor

from kvchat.engine.kernels.triton_support import upload


class KVPair(NamedTuple):
    """Keys and values of the same blocks or tokens, such as the pools of a layer: [N, H_kv, P, D] each."""

    keys: Tensor
    values: Tensor


def heads_first(blocks: Tensor) -> Tensor:
    """Return the slots of blocks [n, H_kv, P, D] in order as [H_kv, n * P, D]."""
    return blocks.transpose(0, 1).flatten(1, 2)


class Shadow(Protocol):
    """Answers queries of one sequence in place of its blocks, which it is made from."""

    def attend(self, layer: int, query: Tensor, new: KVPair, pools: KVPair, scale: float) -> Tensor:
        """Return the output [T, H, D_v] of a layer's rotated queries, and take their tokens.

        Args:
            query: [T, H, D].
            new: rotated keys [T, H_kv, D] and values [T, H_kv, D_v].
            pools: keys [N, H_kv, P, D] and values [N, H_kv, P, D_v] of the layer's blocks.
        """
        ...


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """One sequence's part of a ragged batch in one group.

    Its queries are rows [q_start, q_end) of the batch and stand at positions [position, position + q_end -
    q_start). Position p lies in block `blocks[p // P - first_block]`.

    Args:
        first_block: logical number of the first block in `blocks`; earlier ones are not visible.
        blocks: block ids up to the last query's own block, [n], int64.
        parts: where not all queries see the same blocks: these attend in its place, ascending.
        watched: takes the last queries of each layer, and how they were scored; None: nobody asks for them.
        shadow: who answers these instead of the blocks; None: nobody.
    """

    q_start: int
    q_end: int
    position: int
    first_block: int
    blocks: Tensor
    parts: "tuple[SequenceSpan, ...]" = ()
    watched: "dict[int, tuple[Tensor, AttentionArgs]] | None" = None
    shadow: "Shadow | None" = None

    def moved(self, q_start: int) -> "SequenceSpan":
        """Return the same sequence with its first query at another row."""
        by = q_start - self.q_start
        parts = tuple(part.moved(part.q_start + by) for part in self.parts)
        return replace(self, q_start=q_start, q_end=self.q_end + by, parts=parts)


def attended(spans: Sequence[SequenceSpan]) -> Sequence[SequenceSpan]:
    """Return the spans by which queries attend: parts in place of the whole."""
    if not any(span.parts for span in spans):
        return spans
    return [part for span in spans for part in span.parts or (span,)]


@dataclass(frozen=True, slots=True)
class SpanTable:
    """The sequences of a step as the native kernel reads them.

    Args:
        rows: first row, rows, first position, first block and address of the block ids of each span [B, 5],
            int64; they point into the spans, which live as long.
        num_keys: keys that all of them see together, at most.
    """

    rows: Tensor
    num_keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTables:
    """One group's sequences in a step, for kernels that find their sequence by themselves; all tensors int32
    and on the device of the pools. B sequences, n blocks of the longest table, M tiles.

    Args:
        q_starts: first row of each sequence in the batch [B].
        q_lens: queries of each sequence [B]; 0: a row that only fills the batch up.
        positions: position of each sequence's first query [B].
        first_blocks: logical number of the first block in its table [B].
        tables: block ids, with zeros behind them [B, n].
        singles: numbers of the sequences with one query.
        others: numbers of the sequences with more queries, each with their number.
        most_visible: most keys that one of `singles` sees.
    """

    q_starts: Tensor
    q_lens: Tensor
    positions: Tensor
    first_blocks: Tensor
    tables: Tensor
    singles: tuple[int, ...]
    others: tuple[tuple[int, int], ...]
    most_visible: int
    _tiles: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def single_tiles(self) -> Tensor:
        """Return sequence and first query of each tile of single queries [M, 2], made once for all layers."""
        return self._made((), [[number, 0] for number in self.singles])

    def other_tiles(self, num_queries: int) -> Tensor:
        """Return the same for the other sequences, cut into tiles of so many queries."""
        starts = [
            [number, start] for number, length in self.others for start in range(0, length, num_queries)
        ]
        return self._made((num_queries,), starts)

    def head_tiles(self, num_heads: int, num_rows: int) -> Tensor:
        """Return sequence and first row of each tile of `num_rows` rows, a query and a head each [M, 2]; for
        all sequences.
        """
        lengths = [*((number, 1) for number in self.singles), *self.others]
        starts = [
            [number, start] for number, length in lengths for start in range(0, length * num_heads, num_rows)
        ]
        return self._made((num_heads, num_rows), starts)

    def _made(self, key: tuple[int, ...], tiles: list[list[int]]) -> Tensor:
        if key not in self._tiles:
            self._tiles[key] = upload(tiles, self.tables.device)
        return self._tiles[key]


Prepared = SpanTable | StepTables


@dataclass(frozen=True, slots=True)
class AttentionArgs:
    """Scores of a layer.

    Args:
        spans: the sequences of the batch.
        softmax_scale: factor of the query-key products.
        window: a query at p sees (p - window, p]; None: [0, p].
        chunk: a query at p sees [p - p % chunk, p]; None: no such bound. Not together with a window.
        softcap: scores become softcap * tanh(score / softcap); None: as they are.
        prepared: the same sequences in the form that a backend wants, where a step has made that for all its
            layers.
        sinks: one more logit per query head that takes part in the softmax and has no value [H]; None: none.
    """

    spans: Sequence[SequenceSpan]
    softmax_scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    prepared: Prepared | None = None

    def first_visible(self, position: int) -> int:
        """Return the first position that a query at `position` sees."""
        if self.chunk is not None:
            return position - position % self.chunk
        return 0 if self.window is None else max(0, position - self.window + 1)

    def hides(self, keys: Tensor, at: Tensor) -> Tensor:
        """Return which keys at some positions queries at others do not see, in the shape of both together."""
        hidden = keys > at
        if self.window is not None:
            hidden |= keys <= at - self.window
        if self.chunk is not None:
            hidden |= keys < at - at % self.chunk
        return hidden
