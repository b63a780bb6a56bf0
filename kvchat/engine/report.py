"""What is told about a request: its events, counts and times."""

from kvchat.engine.api.events import (
    FinishReason,
    Loaded,
    PrefillProgress,
    RequestFinished,
    Timings,
    Usage,
)
from kvchat.engine.scheduler import Entry


def progress(entry: Entry) -> PrefillProgress:
    """Return how much of the prompt is there by now."""
    return PrefillProgress(
        request_id=entry.id,
        branch=entry.branch.id,
        prompt_tokens=entry.prompt_len,
        cached_tokens=entry.cached_len,
        computed_tokens=_computed_len(entry),
        loaded=entry.loaded or Loaded(),
    )


def finished(entry: Entry, reason: FinishReason, error: str | None, now_s: float) -> RequestFinished:
    """Return the last event of a request."""
    return RequestFinished(
        request_id=entry.id,
        branch=entry.branch.id,
        reason=reason,
        usage=Usage(
            prompt_tokens=entry.prompt_len,
            cached_tokens=entry.cached_len,
            computed_tokens=_computed_len(entry),
            completion_tokens=entry.num_generated,
        ),
        loaded=entry.loaded or Loaded(),
        timings=_timings(entry, now_s),
        error=error,
    )


def _computed_len(entry: Entry) -> int:
    """Return how many prompt tokens were computed for this request."""
    if entry.first_token_s is not None:
        return entry.prompt_len - entry.cached_len
    return max(0, entry.branch.computed_len - entry.cached_len)


def _timings(entry: Entry, now_s: float) -> Timings:
    first_s = entry.first_token_s
    decode_s = now_s - first_s if first_s is not None else 0.0
    return Timings(
        ttft_s=first_s - entry.submitted_s if first_s is not None else None,
        total_s=now_s - entry.submitted_s,
        decode_tokens_per_s=(entry.num_generated - 1) / decode_s if decode_s > 0 else None,
    )
