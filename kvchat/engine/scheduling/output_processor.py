"""Output processor: turns the logits of a step into tokens, events and finished answers."""

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from kvchat.engine.api.events import Event, FinishReason, TokenEmitted
from kvchat.engine.api.ids import RequestId, SequenceId
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.sampling.beam_search import Advance, BeamSearch, Continuation
from kvchat.engine.sampling.sampler import SampledToken, Sampler, SamplingRow, choices
from kvchat.engine.scheduling.request_state import Hypothesis, RequestState, seeded
from kvchat.engine.scheduling.scheduler import Scheduler
from kvchat.engine.sequences.batch_plan import Batch
from kvchat.engine.sequences.completion_sequence import Completion, StopMatcherGuard
from kvchat.engine.sequences.sequence import Sequence
from kvchat.engine.tiering.save_policy import SavePolicy


@dataclass(frozen=True, slots=True)
class _Due:
    """A sequence whose next token is due: the logits [1 + D, V] behind its last token and D of a draft.

    Args:
        is_open: whether its last token counts as computed only if all of the draft is right: the state that
            the step leaves is behind all of it.
    """

    completion: Completion
    logits: Tensor
    draft: tuple[int, ...] = ()
    is_open: bool = False


@dataclass(slots=True)
class OutputProcessor:
    """Every running sequence, the requests they belong to, and the events that are still to be told.

    Args:
        eos_ids: tokens that end the model's turn.
        max_context: most tokens of a sequence.
        launch: goes on with answers whose next tokens [R] have just been drawn, before they are known; None:
            what follows waits for them.
    """

    manager: CacheManager
    scheduler: Scheduler
    sampler: Sampler
    save_policy: SavePolicy
    clock: Callable[[], float]
    eos_ids: frozenset[int]
    max_context: int
    launch: Callable[[abc.Sequence[Completion], Tensor], None] | None = None
    completions: dict[RequestId, Completion] = field(default_factory=dict)
    requests: dict[RequestId, RequestState] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    reused_tokens: int = 0
    computed_tokens: int = 0
    sampled_tokens: int = 0
    _read_ahead: tuple[int, ...] = ()
    """The last prompt of a message that was not sent yet, until one that begins with it is counted."""
    _ids: "count[int]" = field(default_factory=lambda: count(1))

    def open(self, request: Request, sequence: Sequence) -> Completion:
        """Queue a request whose answer begins on `sequence`."""
        completion = Completion(
            id=self._new_id(),
            request=request,
            sequence=sequence,
            sampling=seeded(request.sampling, 0),
            max_tokens=self._max_tokens(request),
            submitted_s=self.clock(),
            prompt_len=len(request.token_ids),
            stop=StopMatcherGuard(request.stop) if request.stop is not None else None,
            may_draft=request.sampling.beam_width is None,
        )
        self.completions[completion.id] = completion
        self.requests[completion.id] = RequestState(
            completion, [completion], search=self._new_search(request)
        )
        self.scheduler.add(completion)
        return completion

    def least_tokens(self, request: Request) -> int:
        """Return how many tokens must have been computed before any of the answer can be told. Pure."""
        is_told_whole = request.sampling.beam_width is not None
        can_end = bool(self._ends(request.sampling))
        return self._max_tokens(request) if is_told_whole and not can_end else 1

    def running_on(self, sequence: SequenceId) -> Completion | None:
        return next(
            (completion for completion in self.completions.values() if completion.sequence.id == sequence),
            None,
        )

    def cancel(self, request_id: RequestId) -> None:
        """Mark a request's answers; `finish_cancelled` ends them."""
        state = self.requests.get(request_id)
        for completion in state.running if state is not None else ():
            completion.is_cancelled = True

    def prioritise(self, request_id: RequestId, priority: int) -> None:
        """Change the priority of all answers to a request; unknown or finished ones are ignored."""
        state = self.requests.get(request_id)
        for completion in state.running if state is not None else ():
            self.scheduler.prioritise(completion, priority)

    def finish_cancelled(self) -> None:
        for completion in [completion for completion in self.completions.values() if completion.is_cancelled]:
            if completion.id in self.completions:  # a search ends with its first beam
                self.finish(completion, FinishReason.CANCELLED)

    def note_start(self, batch: Batch, now_s: float) -> None:
        """Note for which requests a batch is the first that computes something of them."""
        for chunk in batch.chunks:
            completion = self.completions[chunk.request]
            if completion.started_s is None:
                completion.started_s = now_s

    def record(self, batch: Batch, logits: Tensor) -> None:
        """Note what a batch has computed and append the tokens that follow from its logits [R, V]."""
        sampled: list[_Due] = []
        searched: list[_Due] = []
        rows = logits.split([chunk.num_rows for chunk in batch.chunks])
        for chunk, own in zip(batch.chunks, rows, strict=True):
            completion = self.completions[chunk.request]
            is_open = chunk.num_drafted > 0 and self.manager.device.has_states
            if not is_open:
                self.manager.commit(completion.sequence, chunk.num_certain)
            if chunk.samples:
                due = sampled if self._state(completion).search is None else searched
                due.append(_Due(completion, own, chunk.draft, is_open))
                # Further answers begin where the first one's prompt has just been computed.
                missing = self._state(completion).missing_samples
                due += [_Due(self._fork(completion, sample), own) for sample in missing]
            elif completion.num_generated == 0:
                self.events.append(completion.progress())
        self._sample(sampled)
        self._search(searched)

    def finish(
        self,
        completion: Completion,
        reason: FinishReason,
        error: str | None = None,
        fits_in: tuple[str, ...] = (),
    ) -> None:
        """End one answer, or all beams of a search; the request is over with its last one.

        A search that is given up tells its best beam.

        Args:
            fits_in: cache formats in which there would be room for it, where there is none here.
        """
        state = self._state(completion)
        state.fits_in = fits_in
        if state.search is not None:
            completion = state.running[0]
            self.events += [
                TokenEmitted(request_id=state.first.id, sequence=completion.sequence.id, token_id=token_id)
                for token_id in completion.sequence.token_ids[completion.prompt_len :]
            ]
            self._drop(state, state.running[1:])
            self._release(state.hypotheses)
            state.hypotheses.clear()
        self._take_out(completion)
        self.manager.retract(completion.sequence)
        self.save_policy.save_sequence(completion.sequence)
        state.end(completion, reason, error)
        self._tell_end(state)

    # Sampling

    def _sample(self, due: list["_Due"]) -> None:
        if not due:
            return
        rows = [
            SamplingRow(
                one.completion.id, one.completion.sampling, one.completion.sequence.token_ids, one.draft
            )
            for one in due
        ]
        for one, chosen in zip(due, self._choose(due, rows), strict=True):
            one.completion.num_drafted += len(one.draft)
            self._take_tokens(one, chosen)

    def _choose(
        self, due: abc.Sequence["_Due"], rows: abc.Sequence[SamplingRow]
    ) -> list[list[SampledToken | None]]:
        """Return what is chosen for each row; the step that follows is handed in before it is known."""
        logits = torch.cat([one.logits for one in due])
        if self.launch is None or not self.sampler.draws_there(logits, rows):
            return self.sampler.sample(logits, rows)
        drawn = self.sampler.begin(logits, rows)
        self.launch([one.completion for one in due], drawn.tokens)
        return choices(drawn)

    def _fork(self, completion: Completion, sample: int) -> Completion:
        sibling = self._state(completion).sibling(
            completion, self._new_id(), self.manager.fork(completion.sequence), sample
        )
        self.completions[sibling.id] = sibling
        self.scheduler.add(sibling)
        return sibling

    def _take_tokens(self, due: "_Due", chosen: abc.Sequence[SampledToken | None]) -> None:
        """Append what was chosen, up to where the answer ends. Each token but the last is one of a draft that
        was right, and has been computed; one that ends an answer counts as not computed, as it always does.
        Where a state has gone too far none of them counts: the next step computes them again.
        """
        completion = due.completion
        end: tuple[FinishReason, str | None] | None = None
        for number, choice in enumerate(chosen):
            if number:
                completion.num_accepted += 1
            if number and not due.is_open:
                self.manager.commit(completion.sequence, 1)
            elif number and number == len(due.draft):
                self.manager.commit(completion.sequence, 1 + number)
            end = self._take_token(completion, choice)
            if end is not None:
                break
        if not completion.is_ahead:  # otherwise its next slot is being written
            self.manager.retract(completion.sequence)
        if end is not None:
            self.finish(completion, *end)

    def _take_token(
        self, completion: Completion, choice: SampledToken | None
    ) -> tuple[FinishReason, str | None] | None:
        """Append one token; returns why the answer ends with it, if it does."""
        if choice is None:
            return FinishReason.ERROR, "the model's output is not a number (NaN or infinite)"
        self._note_first_token(completion)
        completion.append(choice.token_id, choice.logprobs.logprob if choice.logprobs else 0.0)
        self.events.append(
            TokenEmitted(
                request_id=completion.request_id or completion.id,
                sequence=completion.sequence.id,
                token_id=choice.token_id,
                sample=completion.sample,
                logprobs=choice.logprobs if completion.request.sampling.logprobs is not None else None,
            )
        )
        self.sampled_tokens += 1
        reason = self._finish_reason(completion, choice.token_id)
        error = completion.stop.error if completion.stop is not None else None
        if error is not None:
            return FinishReason.ERROR, error
        return None if reason is None else (reason, None)

    def _note_first_token(self, completion: Completion) -> None:
        if completion.first_token_s is not None:
            return
        completion.first_token_s = self.clock()
        if completion.request_id is None:
            self._count_prompt(completion)
            self.events.append(completion.progress())

    def _count_prompt(self, completion: Completion) -> None:
        """Count a prompt's tokens. Those that were read ahead of it have been counted, as what they were."""
        ids, ahead = completion.request.token_ids, self._read_ahead
        has_ahead = bool(ahead) and ids[: len(ahead)] == ahead
        num_counted = min(len(ahead), completion.cached_len) if has_ahead else 0
        self.reused_tokens += completion.cached_len - num_counted
        self.computed_tokens += completion.prompt_len - completion.cached_len
        if has_ahead or not completion.request.is_saved:
            self._read_ahead = () if completion.request.is_saved else ids

    def _finish_reason(self, completion: Completion, token: int) -> FinishReason | None:
        if token in self._ends(completion.sampling):
            return FinishReason.STOP
        if completion.stop is not None and completion.stop.feed(token):
            return FinishReason.STOP
        return FinishReason.LENGTH if completion.num_generated >= completion.max_tokens else None

    # Beam search

    def _search(self, due: list["_Due"]) -> None:
        """Keep the beams' logits; where a search has those of all its beams, let it choose."""
        ready: dict[RequestId, RequestState] = {}
        for one in due:
            completion, state = one.completion, self._state(one.completion)
            assert state.search is not None
            self._note_first_token(completion)
            completion.is_held = True
            state.search.offer(completion, one.logits[0])
            if state.search.is_ready(state.running):
                ready[state.first.id] = state
        for state in ready.values():
            assert state.search is not None
            if state.search.is_finite:
                self._apply(state, state.search.advance(state.running))
            else:
                self.finish(state.first, FinishReason.ERROR, "the model's output is not a number")

    def _apply(self, state: RequestState, advance: Advance) -> None:
        """Fork beams with several continuations, release those with none, append the tokens."""
        for continuation in advance.finished:
            self._keep_hypothesis(state, continuation)
        grown: list[tuple[Completion, Continuation]] = []
        taken: set[RequestId] = set()
        for continuation in advance.kept:
            parent = continuation.parent
            grown.append((self._fork(parent, 0) if parent.id in taken else parent, continuation))
            taken.add(parent.id)
        for completion, continuation in grown:
            completion.is_held = False
            completion.append(continuation.token_id, continuation.score - completion.sum_logprob)
        alive = {completion.id for completion, _ in grown}
        self._drop(state, [completion for completion in state.running if completion.id not in alive])
        state.running.sort(key=lambda completion: -completion.sum_logprob)
        if advance.is_over:
            self._drop(state, state.running)
            self._release(state.end_search())
            self.events += state.hypothesis_tokens()
            self._tell_end(state)

    def _keep_hypothesis(self, state: RequestState, end: Continuation) -> None:
        """Put a finished answer among the best ones, on a sequence of its own."""
        sequence = self.manager.fork(end.parent.sequence)
        sequence.token_ids.append(end.token_id)
        reason = FinishReason.STOP if end.token_id in self._ends(end.parent.sampling) else FinishReason.LENGTH
        num_tokens = end.parent.num_generated + 1
        self._release(state.keep(Hypothesis(sequence, end.score, num_tokens, reason)))

    def _drop(self, state: RequestState, beams: list[Completion]) -> None:
        """Let go of beams that are not continued."""
        for completion in list(beams):
            self._take_out(completion)
            state.running.remove(completion)
            self.manager.release(completion.sequence)

    def _release(self, hypotheses: list[Hypothesis]) -> None:
        for hypothesis in hypotheses:
            self.manager.release(hypothesis.sequence)

    def _ends(self, sampling: SamplingParams) -> frozenset[int]:
        own = frozenset(sampling.stop_token_ids)
        return own if sampling.ignore_eos else own | self.eos_ids

    # Both

    def _tell_end(self, state: RequestState) -> None:
        if state.running:
            return
        del self.requests[state.first.id]
        for sequence in state.untold_sequences:
            if sequence in self.manager.sequences:  # nobody has let go of it by its place in a snapshot
                self.manager.release(self.manager.sequences[sequence])
        self.events.append(state.finished(self.clock()))

    def _take_out(self, completion: Completion) -> None:
        self.scheduler.remove(completion)
        self.manager.states.keep(completion.sequence)
        self.scheduler.touch(completion.sequence.id)
        self.sampler.forget(completion.id)
        del self.completions[completion.id]

    def _state(self, completion: Completion) -> RequestState:
        return self.requests[completion.request_id or completion.id]

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
