"""What one call of paged attention needs besides its tensors of queries and pools."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """One sequence's part of a ragged batch in one group.

    Its queries are rows [q_start, q_end) of the batch and stand at positions [position, position + q_end -
    q_start). Position p lies in block `blocks[p // P - first_block]`.

    Args:
        first_block: logical number of the first block in `blocks`; earlier ones are not visible.
        blocks: block ids up to the last query's own block, [n], int64.
    """

    q_start: int
    q_end: int
    position: int
    first_block: int
    blocks: Tensor


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """Queries that stand alone in their sequences.

    Args:
        rows: rows of the queries in the batch of the step [B], int64.
        blocks: the blocks each query sees, padded with its last one [B, n], int64.
        hidden: which of the n * P gathered slots a query does not see [B, n * P], bool.
    """

    rows: Tensor
    blocks: Tensor
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class Decodes:
    """The sequences of a step: those that decode together, and the others."""

    batches: Sequence[DecodeBatch]
    spans: Sequence[SequenceSpan]


@dataclass(frozen=True, slots=True)
class AttentionArgs:
    """Scores of a layer.

    Args:
        spans: the sequences of the batch.
        softmax_scale: factor of the query-key products.
        window: a query at p sees (p - window, p]; None: [0, p].
        chunk: a query at p sees [p - p % chunk, p]; None: no such bound. Not together with a window.
        softcap: scores become softcap * tanh(score / softcap); None: as they are.
        decodes: the same sequences sorted into batches, where a step has done that for all its layers.
        sinks: one more logit per query head that takes part in the softmax and has no value [H]; None: none.
    """

    spans: Sequence[SequenceSpan]
    softmax_scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    decodes: Decodes | None = None

    def first_visible(self, position: int) -> int:
        """Return the first position that a query at `position` sees."""
        if self.chunk is not None:
            return position - position % self.chunk
        return 0 if self.window is None else max(0, position - self.window + 1)
