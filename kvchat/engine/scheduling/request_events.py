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
from kvchat.engine.sequences.completion_sequence import Completion


def progress(completion: Completion) -> PrefillProgress:
    """Return how much of the prompt is there by now."""
    return PrefillProgress(
        request_id=completion.id,
        sequence=completion.sequence.id,
        prompt_tokens=completion.prompt_len,
        cached_tokens=completion.cached_len,
        computed_tokens=_computed_len(completion),
        loaded=completion.loaded or Loaded(),
    )


def token(completion: Completion, choice: SampledToken) -> TokenEmitted:
    return TokenEmitted(
        request_id=completion.request_id or completion.id,
        sequence=completion.sequence.id,
        token_id=choice.token_id,
        sample=completion.sample,
        logprobs=choice.logprobs if completion.request.sampling.logprobs is not None else None,
    )


def hypothesis_tokens(state: RequestState) -> list[TokenEmitted]:
    """Return the tokens of a search's answers, which are known only at its end."""
    return [
        TokenEmitted(
            request_id=state.first.id, sequence=hypothesis.sequence.id, token_id=token_id, sample=sample
        )
        for sample, hypothesis in enumerate(state.hypotheses)
        for token_id in hypothesis.sequence.token_ids[-hypothesis.num_tokens :]
    ]


def beam_tokens(beam: Completion) -> list[TokenEmitted]:
    """Return the tokens of a beam whose search is given up."""
    return [
        TokenEmitted(request_id=beam.request_id or beam.id, sequence=beam.sequence.id, token_id=token_id)
        for token_id in beam.sequence.token_ids[beam.prompt_len :]
    ]


def finished(state: RequestState, now_s: float) -> RequestFinished:
    """Return the last event of a request."""
    completion, samples = state.first, state.ranked()
    return RequestFinished(
        request_id=completion.id,
        sequence=samples[0].sequence,
        reason=samples[0].reason,
        usage=Usage(
            prompt_tokens=completion.prompt_len,
            cached_tokens=completion.cached_len,
            computed_tokens=_computed_len(completion),
            completion_tokens=state.num_generated,
            drafted_tokens=state.num_drafted,
            accepted_tokens=state.num_accepted,
        ),
        loaded=completion.loaded or Loaded(),
        timings=_timings(state, now_s),
        error=samples[0].error,
        fits_in=state.fits_in,
        samples=samples,
    )


def _computed_len(completion: Completion) -> int:
    """Return how many prompt tokens were computed for this request."""
    if completion.first_token_s is not None:
        return completion.prompt_len - completion.cached_len
    return max(0, completion.sequence.computed_len - completion.cached_len)


def _timings(state: RequestState, now_s: float) -> Timings:
    completion = state.first
    first_s = completion.first_token_s
    decode_s = now_s - first_s if first_s is not None else 0.0
    started_s = now_s if completion.started_s is None else completion.started_s
    return Timings(
        queued_s=started_s - completion.submitted_s,
        ttft_s=first_s - completion.submitted_s if first_s is not None else None,
        total_s=now_s - completion.submitted_s,
        decode_tokens_per_s=(state.num_generated - 1) / decode_s if decode_s > 0 else None,
    )
