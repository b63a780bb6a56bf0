"""The answers in progress: what the logits of a step mean for them."""

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import torch
from torch import Tensor

from kvchat.engine.api.events import Event, FinishReason
from kvchat.engine.api.ids import RequestId, SequenceId
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.sampling.beam_search import Advance, BeamSearch, Continuation
from kvchat.engine.sampling.sampler import SampledToken, Sampler, SamplingRow, choices
from kvchat.engine.scheduling import request_events
from kvchat.engine.scheduling.request_state import Hypothesis, RequestState, seeded
from kvchat.engine.scheduling.scheduler import Scheduler
from kvchat.engine.sequences.batch import Batch
from kvchat.engine.sequences.completion import Completion
from kvchat.engine.sequences.sequence import Sequence
from kvchat.engine.sequences.stop_guard import StopGuard
from kvchat.engine.tiering.save_policy import SavePolicy


@dataclass(frozen=True, slots=True)
class _Due:
    """A sequence whose next token is due: the logits [1 + D, V] behind its last token and D of a draft."""

    entry: Completion
    logits: Tensor
    draft: tuple[int, ...] = ()


class Launcher(Protocol):
    """Goes on with answers before their tokens are known; see `Ahead`."""

    def launch(self, due: abc.Sequence[Completion], tokens: Tensor) -> None:
        """Hand in what follows.

        Args:
            due: answers whose next token has just been drawn.
            tokens: these tokens [R], where they were drawn.
        """
        ...


@dataclass(slots=True)
class OutputProcessor:
    """Every running sequence, the requests they belong to, and the events that are still to be told.

    Args:
        eos_ids: tokens that end the model's turn.
        max_context: most tokens of a sequence.
        ahead: None: what follows waits for the tokens.
    """

    manager: CacheManager
    scheduler: Scheduler
    sampler: Sampler
    keeper: SavePolicy
    clock: Callable[[], float]
    eos_ids: frozenset[int]
    max_context: int
    ahead: Launcher | None = None
    entries: dict[RequestId, Completion] = field(default_factory=dict)
    families: dict[RequestId, RequestState] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    reused_tokens: int = 0
    computed_tokens: int = 0
    sampled_tokens: int = 0
    _ids: "count[int]" = field(default_factory=lambda: count(1))

    def open(self, request: Request, sequence: Sequence) -> Completion:
        """Queue a request whose answer begins on `sequence`."""
        entry = Completion(
            id=self._new_id(),
            request=request,
            sequence=sequence,
            sampling=seeded(request.sampling, 0),
            max_tokens=self._max_tokens(request),
            submitted_s=self.clock(),
            prompt_len=len(request.token_ids),
            stop=StopGuard(request.stop) if request.stop is not None else None,
            may_draft=request.sampling.beam_width is None,
        )
        self.entries[entry.id] = entry
        self.families[entry.id] = RequestState(entry, [entry], search=self._new_search(request))
        self.scheduler.add(entry)
        return entry

    def least_tokens(self, request: Request) -> int:
        """Return how many tokens must have been computed before any of the answer can be told. Pure."""
        is_told_whole = request.sampling.beam_width is not None
        can_end = bool(self._ends(request.sampling))
        return self._max_tokens(request) if is_told_whole and not can_end else 1

    def running_on(self, sequence: SequenceId) -> Completion | None:
        return next((entry for entry in self.entries.values() if entry.sequence.id == sequence), None)

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def cancel(self, request_id: RequestId) -> None:
        """Mark a request's answers; `finish_cancelled` ends them."""
        family = self.families.get(request_id)
        for entry in family.running if family is not None else ():
            entry.is_cancelled = True

    def prioritise(self, request_id: RequestId, priority: int) -> None:
        """Change the priority of all answers to a request; unknown or finished ones are ignored."""
        family = self.families.get(request_id)
        for entry in family.running if family is not None else ():
            self.scheduler.prioritise(entry, priority)

    def finish_cancelled(self) -> None:
        for entry in [entry for entry in self.entries.values() if entry.is_cancelled]:
            if entry.id in self.entries:  # a search ends with its first beam
                self.finish(entry, FinishReason.CANCELLED)

    def record(self, batch: Batch, logits: Tensor) -> None:
        """Note what a batch has computed and append the tokens that follow from its logits [R, V]."""
        sampled: list[_Due] = []
        searched: list[_Due] = []
        rows = logits.split([chunk.num_rows for chunk in batch.chunks])
        for chunk, own in zip(batch.chunks, rows, strict=True):
            entry = self.entries[chunk.request]
            self.manager.commit(entry.sequence, chunk.num_certain)
            if chunk.samples:
                due = sampled if self._family(entry).search is None else searched
                due.append(_Due(entry, own, chunk.draft))
                due += [_Due(sibling, own) for sibling in self._fork_siblings(entry)]
            elif entry.num_generated == 0:
                self.events.append(request_events.progress(entry))
        self._sample(sampled)
        self._search(searched)

    def finish(
        self,
        entry: Completion,
        reason: FinishReason,
        error: str | None = None,
        fits_in: tuple[str, ...] = (),
    ) -> None:
        """End one answer, or all beams of a search; the request is over with its last one.

        A search that is given up tells its best beam.

        Args:
            fits_in: cache formats in which there would be room for it, where there is none here.
        """
        family = self._family(entry)
        family.fits_in = fits_in
        if family.search is not None:
            entry = family.running[0]
            self.events += request_events.beam_tokens(entry)
            self._drop(family, family.running[1:])
            self._release(family.take_hypotheses())
        self._take_out(entry)
        self.manager.retract(entry.sequence)
        self.keeper.save_sequence(entry.sequence)
        family.end(entry, reason, error)
        self._tell_end(family)

    # Sampling

    def _sample(self, due: list["_Due"]) -> None:
        if not due:
            return
        rows = [
            SamplingRow(one.entry.id, one.entry.sampling, one.entry.sequence.token_ids, one.draft)
            for one in due
        ]
        for one, chosen in zip(due, self._choose(due, rows), strict=True):
            one.entry.num_drafted += len(one.draft)
            self._take_tokens(one.entry, chosen)

    def _choose(
        self, due: abc.Sequence["_Due"], rows: abc.Sequence[SamplingRow]
    ) -> list[list[SampledToken | None]]:
        """Return what is chosen for each row; the step that follows is handed in before it is known."""
        logits = torch.cat([one.logits for one in due])
        if self.ahead is None or not self.sampler.draws_there(logits, rows):
            return self.sampler.sample(logits, rows)
        drawn = self.sampler.begin(logits, rows)
        self.ahead.launch([one.entry for one in due], drawn.tokens)
        return choices(drawn)

    def _fork_siblings(self, entry: Completion) -> list[Completion]:
        """Return the further answers that begin where the first one's prompt has just been computed."""
        family = self._family(entry)
        return [self._fork(entry, sample) for sample in family.missing_samples]

    def _fork(self, entry: Completion, sample: int) -> Completion:
        sibling = self._family(entry).sibling(
            entry, self._new_id(), self.manager.fork(entry.sequence), sample
        )
        self.entries[sibling.id] = sibling
        self.scheduler.add(sibling)
        return sibling

    def _take_tokens(self, entry: Completion, chosen: abc.Sequence[SampledToken | None]) -> None:
        """Append what was chosen, up to where the answer ends. Each token but the last is one of a draft that
        was right, and has been computed; one that ends an answer counts as not computed, as it always does.
        """
        end: tuple[FinishReason, str | None] | None = None
        for number, choice in enumerate(chosen):
            if number:
                self.manager.commit(entry.sequence, 1)
                entry.num_accepted += 1
            end = self._take_token(entry, choice)
            if end is not None:
                break
        if not entry.is_ahead:  # otherwise its next slot is being written
            self.manager.retract(entry.sequence)
        if end is not None:
            self.finish(entry, *end)

    def _take_token(
        self, entry: Completion, choice: SampledToken | None
    ) -> tuple[FinishReason, str | None] | None:
        """Append one token; returns why the answer ends with it, if it does."""
        if choice is None:
            return FinishReason.ERROR, "the model's output is not a number (NaN or infinite)"
        self._note_first_token(entry)
        entry.append(choice.token_id, choice.logprobs.logprob if choice.logprobs else 0.0)
        self.events.append(request_events.token(entry, choice))
        self.sampled_tokens += 1
        reason = self._finish_reason(entry, choice.token_id)
        error = entry.stop.error if entry.stop is not None else None
        if error is not None:
            return FinishReason.ERROR, error
        return None if reason is None else (reason, None)

    def _note_first_token(self, entry: Completion) -> None:
        if entry.first_token_s is not None:
            return
        entry.first_token_s = self.clock()
        if entry.request_id is None:
            self.reused_tokens += entry.cached_len
            self.computed_tokens += entry.prompt_len - entry.cached_len
            self.events.append(request_events.progress(entry))

    def _finish_reason(self, entry: Completion, token: int) -> FinishReason | None:
        ends_turn = token in self.eos_ids and not entry.sampling.ignore_eos
        if ends_turn or token in entry.sampling.stop_token_ids:
            return FinishReason.STOP
        if entry.stop is not None and entry.stop.feed(token):
            return FinishReason.STOP
        return FinishReason.LENGTH if entry.num_generated >= entry.max_tokens else None

    # Beam search

    def _search(self, due: list["_Due"]) -> None:
        """Keep the beams' logits; where a search has those of all its beams, let it choose."""
        ready: dict[RequestId, RequestState] = {}
        for one in due:
            entry, family = one.entry, self._family(one.entry)
            assert family.search is not None
            self._note_first_token(entry)
            entry.is_held = True
            family.search.offer(entry, one.logits[0])
            if family.search.is_ready(family.running):
                ready[family.first.id] = family
        for family in ready.values():
            assert family.search is not None
            if family.search.is_finite:
                self._apply(family, family.search.advance(family.running))
            else:
                self.finish(family.first, FinishReason.ERROR, "the model's output is not a number")

    def _apply(self, family: RequestState, advance: Advance) -> None:
        """Fork beams with several continuations, release those with none, append the tokens."""
        for continuation in advance.finished:
            self._keep_hypothesis(family, continuation)
        grown: list[tuple[Completion, Continuation]] = []
        taken: set[RequestId] = set()
        for continuation in advance.kept:
            parent = continuation.parent
            grown.append((self._fork(parent, 0) if parent.id in taken else parent, continuation))
            taken.add(parent.id)
        for entry, continuation in grown:
            entry.is_held = False
            entry.append(continuation.token_id, continuation.score - entry.sum_logprob)
        alive = {entry.id for entry, _ in grown}
        self._drop(family, [entry for entry in family.running if entry.id not in alive])
        family.running.sort(key=lambda entry: -entry.sum_logprob)
        if advance.is_over:
            self._drop(family, family.running)
            self._release(family.end_search())
            self.events += request_events.hypothesis_tokens(family)
            self._tell_end(family)

    def _keep_hypothesis(self, family: RequestState, end: Continuation) -> None:
        """Put a finished answer among the best ones, on a sequence of its own."""
        sequence = self.manager.fork(end.parent.sequence)
        sequence.token_ids.append(end.token_id)
        reason = FinishReason.STOP if end.token_id in self._ends(end.parent.sampling) else FinishReason.LENGTH
        num_tokens = end.parent.num_generated + 1
        self._release(family.keep(Hypothesis(sequence, end.score, num_tokens, reason)))

    def _drop(self, family: RequestState, beams: list[Completion]) -> None:
        """Let go of beams that are not continued."""
        for entry in list(beams):
            self._take_out(entry)
            family.running.remove(entry)
            self.manager.release(entry.sequence)

    def _release(self, hypotheses: list[Hypothesis]) -> None:
        for hypothesis in hypotheses:
            self.manager.release(hypothesis.sequence)

    def _ends(self, sampling: SamplingParams) -> frozenset[int]:
        own = frozenset(sampling.stop_token_ids)
        return own if sampling.ignore_eos else own | self.eos_ids

    # Both

    def _tell_end(self, family: RequestState) -> None:
        if family.running:
            return
        del self.families[family.first.id]
        for sequence in family.untold_sequences:
            if sequence in self.manager.sequences:  # nobody has let go of it by its place in a snapshot
                self.manager.release(self.manager.sequences[sequence])
        self.events.append(request_events.finished(family, self.clock()))

    def _take_out(self, entry: Completion) -> None:
        self.scheduler.remove(entry)
        self.scheduler.touch(entry.sequence.id)
        self.sampler.forget(entry.id)
        del self.entries[entry.id]

    def _family(self, entry: Completion) -> RequestState:
        return self.families[entry.request_id or entry.id]

    def _new_id(self) -> RequestId:
        return RequestId(next(self._ids))

    def _max_tokens(self, request: Request) -> int:
        room = self.max_context - len(request.token_ids)
        return min(request.sampling.max_tokens or room, room)

    def _new_search(self, request: Request) -> BeamSearch | None:
        sampling = request.sampling
        if sampling.beam_width is None:
            return None
        return BeamSearch(
            sampling.beam_width, sampling.length_penalty, self._ends(sampling), self._max_tokens(request)
        )
