"""Completion: one sequence that is being computed for a request."""

import logging
from dataclasses import dataclass, field

from kvchat.engine.api.events import Loaded, PrefillProgress
from kvchat.engine.api.ids import RequestId
from kvchat.engine.api.request import Request, StopMatcher
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.sequences.sequence import Sequence

MOST_OPEN = 16
"""Tokens of an answer that are to be computed at most where it goes on: the longest draft, and one."""

log = logging.getLogger(__name__)


class StopMatcherGuard:
    """Asks a matcher of the request's, whose failure ends its answer and not the engine; `error` says why.

    A matcher that cannot be forked fails with the first token of the fork.
    """

    def __init__(self, inner: StopMatcher | None, error: str | None = None) -> None:
        """Args:
        inner: None if it has failed already.
        """
        self._inner = inner
        self.error = error

    def feed(self, token_id: int) -> bool:
        """Take the next token and return whether the answer ends with it."""
        if self._inner is None:
            return True
        try:
            return bool(self._inner.feed(token_id))
        except Exception as error:
            self._fail(error)
            return True

    def fork(self) -> "StopMatcherGuard":
        """Return a guard of the matcher's fork."""
        if self._inner is None:
            return StopMatcherGuard(None, self.error)
        try:
            return StopMatcherGuard(self._inner.fork())
        except Exception as error:
            fork = StopMatcherGuard(None)
            fork._fail(error)
            return fork

    def _fail(self, error: Exception) -> None:
        log.warning("a stop matcher failed", exc_info=error)
        self._inner = None
        self.error = f"what looks for stop strings failed: {error!r}"


@dataclass(slots=True, eq=False)
class Completion:
    """A sequence inside the scheduler: an answer, or a beam of a search. Equal to itself alone.

    Args:
        id: names this sequence; the first answer of a request has the request's own id.
        prompt_len: tokens of the request's prompt.
    """

    id: RequestId
    request: Request
    sequence: Sequence
    max_tokens: int
    submitted_s: float
    prompt_len: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """The request's, with what differs between its answers."""
    loaded: Loaded | None = None
    """Where its cached tokens came from when it was first admitted."""
    request_id: RequestId | None = None
    """The request this is a further answer to; None for the first answer."""
    sample: int = 0
    """Number of the answer among those of its request."""
    stop: StopMatcherGuard | None = None
    sum_logprob: float = 0.0
    num_generated: int = 0
    may_draft: bool = False
    """Whether its next tokens may be guessed; those of a beam are chosen by its search."""
    num_drafted: int = 0
    num_accepted: int = 0
    """Of the drafted tokens, those that were chosen."""
    started_s: float | None = None
    """When the first step began that computed something of it."""
    first_token_s: float | None = None
    is_cancelled: bool = False
    is_held: bool = False
    """Its last token is not decided yet: a search waits for the other beams."""
    is_ahead: bool = False
    """Its next token is being computed already, alone."""

    limit: int | None = None
    """Computes no token from this position on: they are being loaded."""
    is_loaded_in_part: bool = False
    """It computes beside a load: what that brings is not in `loaded` yet."""

    @property
    def num_due(self) -> int:
        """Tokens that it may compute now."""
        end = len(self.sequence.token_ids) if self.limit is None else self.limit
        return max(0, min(end, len(self.sequence.token_ids)) - self.sequence.computed_len)

    def due_within(self, budget: int) -> int:
        """Return how many tokens it may compute in a step that has room for `budget` more."""
        return self.sequence.step_len(min(self.num_due, budget), self.num_due)

    @property
    def most_drafted(self) -> int:
        """Tokens of a draft that it could keep: one more is chosen behind them."""
        return self.max_tokens - self.num_generated - 1

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts by importance: priority, then arrival."""
        return (self.request.priority, self.id)

    @property
    def mean_logprob(self) -> float | None:
        """Mean log-probability of the tokens, where it was asked for."""
        if self.sampling.logprobs is None or not self.num_generated:
            return None
        return self.sum_logprob / self.num_generated

    @property
    def cached_len(self) -> int:
        """Prompt tokens that were found instead of computed."""
        return self.loaded.total if self.loaded else 0

    @property
    def prompt_computed_len(self) -> int:
        """Prompt tokens that were computed by now."""
        if self.first_token_s is not None:
            return self.prompt_len - self.cached_len
        return max(0, self.sequence.computed_len - self.cached_len)

    def progress(self) -> PrefillProgress:
        """Return how much of the prompt is there by now."""
        return PrefillProgress(
            request_id=self.id,
            sequence=self.sequence.id,
            prompt_tokens=self.prompt_len,
            cached_tokens=self.cached_len,
            computed_tokens=self.prompt_computed_len,
            loaded=self.loaded or Loaded(),
        )

    @property
    def is_decoding(self) -> bool:
        return self.sequence.num_uncomputed == 1 and self.num_generated > 0

    @property
    def is_answering(self) -> bool:
        """Whether it decodes, or computes again what a draft had right; see `OutputProcessor`."""
        return 0 < self.sequence.num_uncomputed <= MOST_OPEN and self.num_generated > 0

    def append(self, token_id: int, logprob: float) -> None:
        """Add the next token. `logprob`: its log-probability, 0 where nobody asked."""
        self.sequence.token_ids.append(token_id)
        self.num_generated += 1
        self.sum_logprob += logprob
