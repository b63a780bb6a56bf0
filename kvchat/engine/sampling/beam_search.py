"""Beam search: the most probable answers, grown side by side on shared blocks.

Each step keeps the `width` best continuations of all beams. A beam with several kept continuations is forked,
one with none is released, so the blocks of the common past change their counts and are never copied. Finished
answers compete by their log-probability over length ** length_penalty; the search ends when no running beam
can beat the worst of `width` finished ones at its present length. Dimensions: B beams, V vocabulary.

Source: Wu et al. 2016, section 7; stopping rule and tie order as in transformers' `_beam_search` with
`early_stopping=False`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvchat.engine.sequences.completion_sequence import Completion


@dataclass(frozen=True, slots=True)
class Continuation:
    """One more token behind a beam. `score`: summed log-probability; `ends`: nothing may follow."""

    parent: Completion
    token_id: int
    score: float
    ends: bool


@dataclass(frozen=True, slots=True)
class Advance:
    """What one step of the search decides."""

    kept: tuple[Continuation, ...]
    finished: tuple[Continuation, ...]
    is_over: bool


@dataclass(slots=True)
class BeamSearch:
    """The search of one request.

    Args:
        width: beams kept.
        length_penalty: exponent of the length in a finished answer's score.
        eos_ids: tokens that finish an answer.
        max_tokens: length at which an answer is finished in any case.
    """

    width: int
    length_penalty: float
    eos_ids: Collection[int]
    max_tokens: int
    scores: list[float] = field(default_factory=list)
    """Normalized scores of the finished answers, best first."""
    _rows: dict[int, Tensor] = field(default_factory=dict)

    def offer(self, beam: Completion, logits: Tensor) -> None:
        """Take the logits [V] behind a beam's last token."""
        self._rows[beam.id] = logits.log_softmax(dim=-1)

    @property
    def is_finite(self) -> bool:
        """Whether the beams' logits are numbers to choose by."""
        return all(bool(torch.isfinite(row.amax())) for row in self._rows.values())

    def is_ready(self, beams: Sequence[Completion]) -> bool:
        """Whether every beam's logits are there. Pure."""
        return all(beam.id in self._rows for beam in beams)

    def advance(self, beams: Sequence[Completion]) -> Advance:
        """Choose the continuations of all beams, using up their logits."""
        num_tokens = beams[0].num_generated + 1
        candidates = self._candidates(beams, ends_all=num_tokens >= self.max_tokens)
        self._rows.clear()
        kept = tuple(candidate for candidate in candidates if not candidate.ends)[: self.width]
        finished = tuple(candidate for candidate in candidates[: self.width] if candidate.ends)
        scores = self.scores + [self.normalized(end.score, num_tokens) for end in finished]
        self.scores = sorted(scores, reverse=True)[: self.width]
        is_full = len(self.scores) == self.width
        is_over = not kept or (is_full and self.normalized(kept[0].score, num_tokens) <= self.scores[-1])
        return Advance(kept, finished, is_over=is_over)

    def normalized(self, score: float, num_tokens: int) -> float:
        """Return the score by which finished answers compete."""
        return score / num_tokens**self.length_penalty

    def _candidates(self, beams: Sequence[Completion], *, ends_all: bool) -> list[Continuation]:
        """Return the best continuations, best first; enough that `width` of them do not end."""
        totals = torch.stack([self._rows[beam.id] + beam.sum_logprob for beam in beams])  # [B, V]
        vocab_size = totals.shape[1]
        num_candidates = min(max(2, 1 + len(self.eos_ids)) * self.width, totals.numel())
        values, indices = totals.flatten().topk(num_candidates)
        return [
            Continuation(
                parent=beams[index // vocab_size],
                token_id=index % vocab_size,
                score=score,
                ends=ends_all or index % vocab_size in self.eos_ids,
            )
            for score, index in zip(values.tolist(), indices.tolist(), strict=True)
        ]
