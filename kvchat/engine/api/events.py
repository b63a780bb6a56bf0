"""Events of a request. Immutable values that cross the thread boundary."""

from dataclasses import dataclass, field
from enum import StrEnum

from kvchat.engine.api.ids import RequestId, SequenceId


class FinishReason(StrEnum):
    STOP = "stop"
    """The model ended its turn, or a stop string or stop token came."""
    LENGTH = "length"
    """max_tokens or the context is used up."""
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one request; cached + computed = prompt.

    Of the completion's tokens, `accepted_tokens` were guessed and computed in the step of the one before;
    `drafted_tokens` counts all guesses.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    completion_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Where the cached tokens of a request came from, in tokens; sums to `Usage.cached_tokens`.

    Args:
        stateless: tokens behind them whose keys and values were there, but no state of recurrent layers.
    """

    device: int = 0
    host: int = 0
    disk: int = 0
    stateless: int = 0

    @property
    def total(self) -> int:
        return self.device + self.host + self.disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds since the request was submitted, and the decode rate.

    `queued_s` is the time until something of it was computed, all of it where nothing was; `ttft_s` that to
    the first token, None where none came.
    """

    queued_s: float = 0.0
    ttft_s: float | None = None
    total_s: float = 0.0
    decode_tokens_per_s: float | None = None


class LoadChoice(StrEnum):
    """How a prompt that is stored on a slower tier comes to the device."""

    LOAD = "load"
    COMPUTE = "compute"
    BOTH = "both"
    """Computed from its front and loaded from its tail, until the two meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEstimate:
    """Seconds until the stored part of a prompt is on the device, from measured rates.

    `load_s` and `compute_s` are those of either way alone, `expected_s` those of the one that was chosen.
    """

    choice: LoadChoice
    load_s: float
    compute_s: float
    expected_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlanned:
    """The request waits for stored blocks, or computes what it could have loaded; told before the wait."""

    request_id: RequestId
    sequence: SequenceId
    estimate: LoadEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillProgress:
    """The request entered the engine, or another chunk of its prompt is computed."""

    request_id: RequestId
    sequence: SequenceId
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    loaded: Loaded = field(default_factory=Loaded)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Natural logarithms of probabilities before temperature and truncation.

    `top` has the most probable tokens as (token id, log-probability), most probable first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEmitted:
    """The next token of a request's answer; `sample` numbers the answers of one request."""

    request_id: RequestId
    sequence: SequenceId
    token_id: int
    sample: int = 0
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEnd:
    """How one answer of a request ended. Its sequence stays live until it is released.

    `mean_logprob` is the mean log-probability of its tokens, None where none was asked for.
    """

    sample: int
    sequence: SequenceId
    reason: FinishReason
    completion_tokens: int
    mean_logprob: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFinished:
    """The last event of a request. `error` is a message to show where `reason` is ERROR.

    `sequence`, `reason` and `error` are those of the first of `samples`, which stand in order of
    preference: by number, or where more were sampled than returned the most probable first. Usage counts
    all of them.
    """

    request_id: RequestId
    sequence: SequenceId
    reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    loaded: Loaded = field(default_factory=Loaded)
    timings: Timings = field(default_factory=Timings)
    error: str | None = None
    samples: tuple[SampleEnd, ...] = ()
    fits_in: tuple[str, ...] = ()
    """Where it ended for want of room: cache formats in which there would be some, the most exact first."""


Event = LoadPlanned | PrefillProgress | TokenEmitted | RequestFinished
