"""The answers to one request: they share a prompt, run side by side, and are told about together."""

from dataclasses import dataclass, field, replace

from kvchat.engine.api.events import FinishReason, SampleEnd
from kvchat.engine.api.ids import RequestId
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.cache.branch import Branch
from kvchat.engine.scheduler import Entry


@dataclass(slots=True)
class Family:
    """One request's first answer, its siblings, and those that have ended."""

    first: Entry
    running: list[Entry]
    ended: list[SampleEnd] = field(default_factory=list)
    num_generated: int = 0

    @property
    def num_missing(self) -> int:
        """Siblings still to be forked from the first answer, once its prompt is computed."""
        known = len(self.running) + len(self.ended)
        return self.first.request.sampling.num_samples - known if self.first in self.running else 0

    def sibling(self, sequence_id: RequestId, branch: Branch) -> Entry:
        """Return a further answer on `branch`, a fork of the first one's at the end of the prompt."""
        first, sample = self.first, len(self.running) + len(self.ended)
        assert first.num_generated == 0
        entry = Entry(
            id=sequence_id,
            request=first.request,
            branch=branch,
            sampling=seeded(first.request.sampling, sample),
            max_tokens=first.max_tokens,
            submitted_s=first.submitted_s,
            prompt_len=first.prompt_len,
            loaded=first.loaded,
            request_id=first.id,
            sample=sample,
            stop=first.stop.fork() if first.stop is not None else None,
        )
        self.running.append(entry)
        return entry

    def end(self, entry: Entry, reason: FinishReason, error: str | None) -> bool:
        """Record that an answer has ended; True if it was the last."""
        self.running.remove(entry)
        self.num_generated += entry.num_generated
        self.ended.append(
            SampleEnd(
                sample=entry.sample,
                branch=entry.branch.id,
                reason=reason,
                completion_tokens=entry.num_generated,
                mean_logprob=entry.mean_logprob,
                error=error,
            )
        )
        return not self.running

    def ranked(self) -> tuple[SampleEnd, ...]:
        """Return the answers to give: by number, or the most probable ones of all that were sampled."""
        ends = sorted(self.ended, key=lambda end: end.sample)
        sampling = self.first.request.sampling
        if sampling.num_samples > sampling.n:
            ends.sort(key=lambda end: -(end.mean_logprob if end.mean_logprob is not None else float("-inf")))
        return tuple(ends[: sampling.n])


def seeded(sampling: SamplingParams, sample: int) -> SamplingParams:
    """Return the sampling of one answer: a seed of its own, and log-probabilities where they decide."""
    if sampling.seed is not None:
        sampling = replace(sampling, seed=sampling.seed + sample)
    if sampling.num_samples > sampling.n and sampling.logprobs is None:
        sampling = replace(sampling, logprobs=0)
    return sampling
