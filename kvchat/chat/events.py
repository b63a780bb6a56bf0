"""Chat events while an answer grows, and the cost of a revision before it is made. Values only.

What the engine tells of a prompt, and text as it comes, are passed on as they are.

They are apart from the code that makes them, so that a window is drawn before the chat behind it is imported.
"""

from dataclasses import dataclass

from kvchat.engine.api.events import LoadPlanned, PrefillProgress
from kvchat.session.template.text_stream import Piece
from kvchat.session.tree import BranchName, Turn

MOST_SAMPLES = 8
"""So many answers can be compared at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditCost:
    """Cost of a revision, in tokens.

    Args:
        reused_tokens: of the new path, need not be computed.
        computed_tokens: of the new path, must be.
        left_turns: turns that stay behind on the branch as it was.
        left_tokens: theirs.
        is_known: False where a server computes, which does not say it before.
    """

    reused_tokens: int
    computed_tokens: int
    left_turns: int
    left_tokens: int
    is_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    """The question is stored (None when an answer is retried or continued) and the answer has an id."""

    question: Turn | None
    answer: Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished:
    """The answer as stored. Last event of a turn."""

    answer: Turn
    error: str | None = None
    fits_in: tuple[str, ...] = ()
    """Where capacity ran out: cache formats in which it could go on, the most exact first."""
    notices: tuple[str, ...] = ()
    """What a person should know of what was stored."""


ChatEvent = TurnStarted | LoadPlanned | PrefillProgress | Piece | TurnFinished


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDelta:
    """More text of one candidate."""

    sample: int
    text: str
    reasoning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesFinished:
    """The candidates as stored. Last event."""

    answers: tuple[Turn, ...]
    error: str | None = None


SampleEvent = PrefillProgress | SampleDelta | SamplesFinished


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A token that could come at a place. `is_end`: the answer ends with it."""

    token_id: int
    text: str
    probability: float
    is_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """Where a conversation goes on. The old path is `kept + left`, the new one `kept + anew`.

    Args:
        kept: turns of both.
        anew: copies of turns that followed, behind `kept`; the model has not seen them there yet.
        left: turns that stay behind.
        stays_on: the branch that has the old path then.
    """

    kept: tuple[Turn, ...]
    anew: tuple[Turn, ...]
    left: tuple[Turn, ...]
    stays_on: BranchName

    @property
    def before(self) -> tuple[Turn, ...]:
        return self.kept + self.left

    @property
    def path(self) -> tuple[Turn, ...]:
        return self.kept + self.anew

    @property
    def dropped(self) -> tuple[Turn, ...]:
        """The turns that the new path is without."""
        return self.left[: len(self.left) - len(self.anew)]
