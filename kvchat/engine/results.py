"""Results of `generate`: a request's answers, collected from its events."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvchat.engine.api.events import (
    Event,
    FinishReason,
    Loaded,
    RequestFinished,
    SampleEnd,
    Timings,
    TokenEmitted,
    TokenLogprobs,
    Usage,
)
from kvchat.engine.api.ids import RequestId, SequenceId


class Handle:
    """Iterate to receive the request's events; the last one is RequestFinished."""

    def __init__(
        self,
        request_id: RequestId,
        sequence: SequenceId,
        step: Callable[[], object],
        cancel: Callable[[RequestId], None],
    ) -> None:
        self.request_id = request_id
        self.sequence = sequence
        self.result: RequestFinished | None = None
        self._step = step
        self._cancel = cancel
        self._events: deque[Event] = deque()

    def push(self, event: Event) -> None:
        """Take an event; the last one tells which sequence holds the answer."""
        self._events.append(event)
        if isinstance(event, RequestFinished):
            self.result = event
            self.sequence = event.sequence

    def cancel(self) -> None:
        """Ask for the end of the request; takes effect with the next step."""
        self._cancel(self.request_id)

    def __iter__(self) -> Iterator[Event]:
        while self._events or self.result is None:
            while self._events:
                yield self._events.popleft()
            if self.result is None:
                self._step()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSample:
    """One answer. `logprobs` has an entry per token where they were asked for."""

    token_ids: list[int]
    finish_reason: FinishReason
    mean_logprob: float | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One finished request; the properties speak of its first answer."""

    samples: list[AnswerSample]
    usage: Usage
    loaded: Loaded
    timings: Timings
    sequences: tuple[SequenceId, ...] = ()
    """Every sequence the request has used, live until released."""

    @property
    def token_ids(self) -> list[int]:
        return self.samples[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.samples[0].finish_reason

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        return self.samples[0].logprobs

    @property
    def error(self) -> str | None:
        return self.samples[0].error


def collect(handle: Handle) -> Result:
    """Iterate a handle to its end and return what came."""
    emitted = [event for event in handle if isinstance(event, TokenEmitted)]
    finished = handle.result
    assert finished is not None
    ends = [finished.sequence, *(end.sequence for end in finished.samples)]  # some may have no token
    sequences = dict.fromkeys([*(event.sequence for event in emitted), *ends])
    return Result(
        samples=[_sample(end, emitted) for end in finished.samples],
        usage=finished.usage,
        loaded=finished.loaded,
        timings=finished.timings,
        sequences=tuple(sequences),
    )


def _sample(end: SampleEnd, emitted: list[TokenEmitted]) -> AnswerSample:
    own = [event for event in emitted if event.sample == end.sample]
    return AnswerSample(
        token_ids=[event.token_id for event in own],
        finish_reason=end.reason,
        mean_logprob=end.mean_logprob,
        logprobs=[event.logprobs for event in own if event.logprobs is not None],
        error=end.error,
    )
