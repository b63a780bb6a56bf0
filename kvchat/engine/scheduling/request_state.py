"""Request state: the completions of one request, which share a prompt and are reported together."""

from dataclasses import dataclass, field, replace

from kvchat.engine.api.events import (
    FinishReason,
    Loaded,
    RequestFinished,
    SampleEnd,
    Timings,
    TokenEmitted,
    Usage,
)
from kvchat.engine.api.ids import RequestId, SequenceId
from kvchat.engine.api.sampling_params import NUM_SEEDS, SamplingParams
from kvchat.engine.sampling.beam_search import BeamSearch
from kvchat.engine.sequences.completion_sequence import Completion
from kvchat.engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished answer of a beam search. `score`: summed log-probability of its tokens."""

    sequence: Sequence
    score: float
    num_tokens: int
    reason: FinishReason


@dataclass(slots=True)
class RequestState:
    """One request's answers: those that run, and those that have ended.

    Args:
        first: the answer with which the request began.
        running: sampled answers, or the beams of a search, the most probable first.
        search: decides instead of the sampler, if the request asks for it.
    """

    first: Completion
    running: list[Completion]
    search: BeamSearch | None = None
    ended: list[SampleEnd] = field(default_factory=list)
    num_generated: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    hypotheses: list[Hypothesis] = field(default_factory=list)
    fits_in: tuple[str, ...] = ()
    """Cache formats in which there would be room, where the last answer to end found none here."""

    @property
    def missing_samples(self) -> range:
        """Numbers of the answers still to be forked from the first one, when its prompt is computed."""
        num_samples = self.first.request.sampling.num_samples
        is_due = self.search is None and self.running == [self.first] and not self.ended
        return range(1, num_samples) if is_due else range(0)

    def sibling(
        self, parent: Completion, sequence_id: RequestId, sequence: Sequence, sample: int
    ) -> Completion:
        """Return a further answer that goes on from where `parent` stands, on a fork of its sequence."""
        request = self.first.request
        completion = replace(
            parent,
            id=sequence_id,
            sequence=sequence,
            sampling=seeded(request.sampling, sample),
            request_id=self.first.id,
            sample=sample,
            stop=parent.stop.fork() if parent.stop is not None else None,
            limit=None,  # what is loaded for the parent does not reach its fork's blocks
            is_loaded_in_part=False,
        )
        self.running.append(completion)
        return completion

    def end(self, completion: Completion, reason: FinishReason, error: str | None) -> None:
        """Record that an answer has ended."""
        self.running.remove(completion)
        self.num_generated += completion.num_generated
        self.num_drafted += completion.num_drafted
        self.num_accepted += completion.num_accepted
        self.ended.append(
            SampleEnd(
                sample=completion.sample,
                sequence=completion.sequence.id,
                reason=reason,
                completion_tokens=completion.num_generated,
                mean_logprob=completion.mean_logprob,
                error=error,
            )
        )

    def keep(self, hypothesis: Hypothesis) -> list[Hypothesis]:
        """Put a finished answer among the best ones and return those that fall out."""
        assert self.search is not None
        search = self.search
        self.hypotheses.append(hypothesis)
        self.hypotheses.sort(key=lambda kept: -search.normalized(kept.score, kept.num_tokens))
        lost = self.hypotheses[search.width :]
        del self.hypotheses[search.width :]
        return lost

    def end_search(self) -> list[Hypothesis]:
        """Make the best finished answers the request's samples and return those that are not wanted."""
        wanted = self.first.request.sampling.n
        lost = self.hypotheses[wanted:]
        del self.hypotheses[wanted:]
        for sample, hypothesis in enumerate(self.hypotheses):
            self.num_generated += hypothesis.num_tokens
            self.ended.append(
                SampleEnd(
                    sample=sample,
                    sequence=hypothesis.sequence.id,
                    reason=hypothesis.reason,
                    completion_tokens=hypothesis.num_tokens,
                    mean_logprob=hypothesis.score / hypothesis.num_tokens,
                )
            )
        return lost

    @property
    def untold_sequences(self) -> list[SequenceId]:
        """The sequences of answers that are not given and have no token: no event has named them."""
        told = {self.first.sequence.id, *(end.sequence for end in self.ranked())}
        return [end.sequence for end in self.ended if not end.completion_tokens and end.sequence not in told]

    def ranked(self) -> tuple[SampleEnd, ...]:
        """Return the answers to give: by number, or the most probable ones of all that were sampled."""
        ends = sorted(self.ended, key=lambda end: end.sample)
        sampling = self.first.request.sampling
        if sampling.num_samples > sampling.n:
            ends.sort(key=lambda end: -(end.mean_logprob if end.mean_logprob is not None else float("-inf")))
        return tuple(ends[: sampling.n])

    def hypothesis_tokens(self) -> list[TokenEmitted]:
        """Return the tokens of a search's answers, which are known only at its end."""
        return [
            TokenEmitted(
                request_id=self.first.id, sequence=hypothesis.sequence.id, token_id=token_id, sample=sample
            )
            for sample, hypothesis in enumerate(self.hypotheses)
            for token_id in hypothesis.sequence.token_ids[-hypothesis.num_tokens :]
        ]

    def finished(self, now_s: float) -> RequestFinished:
        """Return the last event of the request."""
        first, samples = self.first, self.ranked()
        return RequestFinished(
            request_id=first.id,
            sequence=samples[0].sequence,
            reason=samples[0].reason,
            usage=Usage(
                prompt_tokens=first.prompt_len,
                cached_tokens=first.cached_len,
                computed_tokens=first.prompt_computed_len,
                completion_tokens=self.num_generated,
                drafted_tokens=self.num_drafted,
                accepted_tokens=self.num_accepted,
            ),
            loaded=first.loaded or Loaded(),
            timings=self._timings(now_s),
            error=samples[0].error,
            fits_in=self.fits_in,
            samples=samples,
        )

    def _timings(self, now_s: float) -> Timings:
        submitted_s, first_s = self.first.submitted_s, self.first.first_token_s
        decode_s = now_s - first_s if first_s is not None else 0.0
        started_s = now_s if self.first.started_s is None else self.first.started_s
        return Timings(
            queued_s=started_s - submitted_s,
            ttft_s=first_s - submitted_s if first_s is not None else None,
            total_s=now_s - submitted_s,
            decode_tokens_per_s=(self.num_generated - 1) / decode_s if decode_s > 0 else None,
        )


def seeded(sampling: SamplingParams, sample: int) -> SamplingParams:
    """Return the sampling of one answer: a seed of its own, and log-probabilities where they decide."""
    if sampling.seed is not None:
        sampling = replace(sampling, seed=(sampling.seed + sample) % NUM_SEEDS)
    if sampling.num_samples > sampling.n and sampling.logprobs is None:
        sampling = replace(sampling, logprobs=0)
    return sampling
