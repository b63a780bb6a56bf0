"""Events, counts and times reported for a request."""

from kvchat.engine.api.events import (
    Loaded,
    PrefillProgress,
    RequestFinished,
    Timings,
    TokenEmitted,
    Usage,
)
from kvchat.engine.sampling.sampler import SampledToken
from kvchat.engine.scheduling.request_state import RequestState
from kvchat.engine.sequences.completion import Completion


def progress(entry: Completion) -> PrefillProgress:
    """Return how much of the prompt is there by now."""
    return PrefillProgress(
        request_id=entry.id,
        sequence=entry.sequence.id,
        prompt_tokens=entry.prompt_len,
        cached_tokens=entry.cached_len,
        computed_tokens=_computed_len(entry),
        loaded=entry.loaded or Loaded(),
    )


def token(entry: Completion, choice: SampledToken) -> TokenEmitted:
    return TokenEmitted(
        request_id=entry.request_id or entry.id,
        sequence=entry.sequence.id,
        token_id=choice.token_id,
        sample=entry.sample,
        logprobs=choice.logprobs if entry.request.sampling.logprobs is not None else None,
    )


def hypothesis_tokens(family: RequestState) -> list[TokenEmitted]:
    """Return the tokens of a search's answers, which are known only at its end."""
    return [
        TokenEmitted(
            request_id=family.first.id, sequence=hypothesis.sequence.id, token_id=token_id, sample=sample
        )
        for sample, hypothesis in enumerate(family.hypotheses)
        for token_id in hypothesis.sequence.token_ids[-hypothesis.num_tokens :]
    ]


def beam_tokens(beam: Completion) -> list[TokenEmitted]:
    """Return the tokens of a beam whose search is given up."""
    return [
        TokenEmitted(request_id=beam.request_id or beam.id, sequence=beam.sequence.id, token_id=token_id)
        for token_id in beam.sequence.token_ids[beam.prompt_len :]
    ]


def finished(family: RequestState, now_s: float) -> RequestFinished:
    """Return the last event of a request."""
    entry, samples = family.first, family.ranked()
    return RequestFinished(
        request_id=entry.id,
        sequence=samples[0].sequence,
        reason=samples[0].reason,
        usage=Usage(
            prompt_tokens=entry.prompt_len,
            cached_tokens=entry.cached_len,
            computed_tokens=_computed_len(entry),
            completion_tokens=family.num_generated,
            drafted_tokens=family.num_drafted,
            accepted_tokens=family.num_accepted,
        ),
        loaded=entry.loaded or Loaded(),
        timings=_timings(family, now_s),
        error=samples[0].error,
        fits_in=family.fits_in,
        samples=samples,
    )


def _computed_len(entry: Completion) -> int:
    """Return how many prompt tokens were computed for this request."""
    if entry.first_token_s is not None:
        return entry.prompt_len - entry.cached_len
    return max(0, entry.sequence.computed_len - entry.cached_len)


def _timings(family: RequestState, now_s: float) -> Timings:
    entry = family.first
    first_s = entry.first_token_s
    decode_s = now_s - first_s if first_s is not None else 0.0
    return Timings(
        ttft_s=first_s - entry.submitted_s if first_s is not None else None,
        total_s=now_s - entry.submitted_s,
        decode_tokens_per_s=(family.num_generated - 1) / decode_s if decode_s > 0 else None,
    )
