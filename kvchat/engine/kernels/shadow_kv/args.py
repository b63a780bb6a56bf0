"""Arguments and results of attention to chosen chunks, besides queries and pools.

Dimensions: Q queries, H query heads, H_kv key-value heads, D and D_v sizes of a head, R numbers of a head
that turn, c tokens of a chunk, k slots of a working set.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

MOST_SLOTS = 1024
"""Of a head's working set, which one program of the kernel exchanges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landmarks:
    """What stands for some chunks when they are weighed.

    Args:
        rows: landmarks [n, H_kv, D], or keys [n, c, H_kv, D], of which the best counts.
        scales: of keys that are codes in int8: what those of each chunk and head are multiplied with
            [n, H_kv], float32; None: rows are numbers.
    """

    rows: Tensor
    scales: Tensor | None = None

    @property
    def num_chunks(self) -> int:
        return len(self.rows)

    @property
    def num_keys(self) -> int:
        """Keys that stand for a chunk."""
        return self.rows.shape[1] if self.rows.dim() == 4 else 1

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def split(self, num_chunks: int) -> Iterator["Landmarks"]:
        """Yield the same in pieces of at most so many chunks."""
        for start in range(0, self.num_chunks, num_chunks):
            part = slice(start, start + num_chunks)
            scales = None if self.scales is None else self.scales[part]
            yield Landmarks(rows=self.rows[part], scales=scales)

    def numbers(self) -> Tensor:
        """Return keys or landmarks [n * keys of a chunk, H_kv, D]: a copy in float32 of what is in codes."""
        if self.scales is None:
            return self.rows if self.rows.dim() == 3 else self.rows.flatten(0, 1)
        return (self.rows.float() * self.scales[:, None, :, None]).flatten(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotations:
    """A rotary embedding at some positions, as a table at all of them from the first one on.

    Args:
        cosines, sines: [..., R / 2], float32, one of each pair, for the first R numbers of a head.
        are_neighbours: numbers 2i and 2i + 1 turn together; otherwise i and i + R / 2.
    """

    cosines: Tensor
    sines: Tensor
    are_neighbours: bool = False

    def at(self, positions: Tensor) -> "Rotations":
        """Return a table's embedding at `positions` [...]."""
        return replace(self, cosines=self.cosines[positions], sines=self.sines[positions])


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a working set comes to hold.

    Args:
        slots: the chunk in each slot of each head afterwards [H_kv, k], int64.
        is_missing: slots that are to be filled [H_kv, k], of bool; the others keep what they hold.
    """

    slots: Tensor
    is_missing: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkChoice:
    """A sequence of which its last tokens choose what they see.

    Its first tokens are compressed: they belong to chunks. The others are its tail, which is seen as it is.

    Args:
        blocks: all of the sequence, in order [N], int64.
        stands: what stands for the compressed chunks, in order.
        always: chunks [H_kv, a] that are seen anyway, ascending, int64.
        num_chosen: chunks that each head chooses besides; so many are left.
        num_tokens: of the sequence, the queries' own included, which are the last.
        before: chunks [H_kv, m] that were chosen the last time, ascending; None: there was no such time.
    """

    blocks: Tensor
    stands: tuple[Landmarks, ...]
    always: Tensor
    num_chosen: int
    chunk_size: int
    num_tokens: int
    softmax_scale: float
    before: Tensor | None = None

    @property
    def num_compressed(self) -> int:
        """Chunks."""
        return sum(stand.num_chunks for stand in self.stands)

    @property
    def always_mask(self) -> Tensor:
        """[H_kv, compressed chunks] of bool."""
        mask = torch.zeros(len(self.always), self.num_compressed, dtype=torch.bool)
        return mask.scatter_(1, self.always, value=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenChunks:
    """What queries saw.

    Args:
        out: [Q, H, D_v], in the type of the queries.
        chosen: chunks [H_kv, k], ascending, int64.
        num_new: of these, over all heads, those that were not chosen before.
    """

    out: Tensor
    chosen: Tensor
    num_new: int
