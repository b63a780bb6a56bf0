"""What one step computes: ints and tuples, no tensors."""

from dataclasses import dataclass

from kvchat.engine.api.ids import BranchId, RequestId
from kvchat.engine.cache.plan import Move, TableChange


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one branch: a piece of a prompt, or the last sampled token.

    Args:
        start: position of the first token.
        token_ids: the tokens to compute.
        samples: whether the logits behind the last token choose the next one.
    """

    request: RequestId
    branch: BranchId
    start: int
    token_ids: tuple[int, ...]
    samples: bool

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """One step. `moves` are copies that precede it; `changes` bring the runner's tables up to date."""

    chunks: tuple[Chunk, ...]
    moves: tuple[Move, ...]
    changes: tuple[TableChange, ...]
    dropped: tuple[BranchId, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.token_ids) for chunk in self.chunks)
