"""Batch: what one step computes, in ints and tuples, no tensors."""

from dataclasses import dataclass

from kvchat.engine.api.ids import GroupId, RequestId, SequenceId
from kvchat.engine.cache.block_operations import Move, Prune, TableChange


@dataclass(frozen=True, slots=True)
class ShadowedPrompt:
    """What a shadow is made of.

    Args:
        name: of its tokens; what has the same name has the same KV.
        num_tokens: had been computed when it was made.
    """

    name: bytes
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence: a piece of a prompt, or the last sampled token and a draft
    behind it.

    Args:
        start: position of the first token.
        token_ids: the tokens to compute, the draft's last.
        samples: whether the logits behind the last token that is no draft choose the next one.
        num_drafted: tokens of the draft: a guess at what will be chosen, computed with the rest. Each is
            kept if the logits before it choose it.
        hidden_ranges: blocks [start, end) of each group that are out of sight, where any are.
        prunes: what happens behind the last token.
        snapshots: positions inside of it before which states are kept, ascending.
        shadowed: of what the shadow is made through which these tokens look at what is before them; None:
            they are computed exactly.
    """

    request: RequestId
    sequence: SequenceId
    start: int
    token_ids: tuple[int, ...]
    samples: bool
    num_drafted: int = 0
    hidden_ranges: tuple[tuple[GroupId, tuple[tuple[int, int], ...]], ...] = ()
    prunes: tuple[Prune, ...] = ()
    snapshots: tuple[int, ...] = ()
    shadowed: ShadowedPrompt | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)

    @property
    def num_certain(self) -> int:
        """Tokens that belong to the sequence already."""
        return len(self.token_ids) - self.num_drafted

    @property
    def draft(self) -> tuple[int, ...]:
        return self.token_ids[self.num_certain :]

    @property
    def num_rows(self) -> int:
        """Tokens whose logits are needed, the last ones."""
        return 1 + self.num_drafted if self.samples else 0


@dataclass(frozen=True, slots=True)
class Batch:
    """One step. `moves` are copies that precede it; `changes` bring the runner's tables up to date."""

    chunks: tuple[Chunk, ...]
    moves: tuple[Move, ...]
    changes: tuple[TableChange, ...]
    dropped: tuple[SequenceId, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.token_ids) for chunk in self.chunks)

    @property
    def num_drafted(self) -> int:
        return sum(chunk.num_drafted for chunk in self.chunks)
