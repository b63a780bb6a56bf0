"""Sampled candidates: several answers to one question at once, from one computed prompt.

Every candidate is a turn of its own behind the same question, stored as it grows. When one is chosen, the
others lose their blocks and their branch names; their text stays in the session's tree.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from kvchat.chat.conversation import ON_SCREEN, Answering, Conversation, prefill_of, with_ends
from kvchat.chat.engine_client import RequestHandle
from kvchat.chat.events import MOST_SAMPLES, SampleDelta, SampleEvent, SamplesFinished
from kvchat.chat.revision import to_last_question
from kvchat.engine.api.events import PrefillProgress, RequestFinished, TokenEmitted
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import EngineFailed, KvchatError, UsageError
from kvchat.session.growing_answer import Answer, outcome_of
from kvchat.session.kv.provenance import namespace_of
from kvchat.session.store import Outcome
from kvchat.session.template import prompts
from kvchat.session.tree import Finish, Turn, path_token_ids

DIFFERING_TEMPERATURE = 0.8
"""For those who sample greedily: greedy answers are all the same."""
_WAIT_S = 0.05


class Candidates:
    """Answers a conversation's last question several times.

    Args:
        answering: what single answers are written with.
    """

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._store = answering.store
        self._template = answering.template
        self._engine = answering.engine

    def run(self, conversation: Conversation, num: int, sampling: SamplingParams) -> Iterator[SampleEvent]:
        """Yield the events of `num` candidates; whoever closes this keeps them as far as they are.

        Raises:
            UsageError: there is no question, or `num` is out of range.
            CapacityError, InvalidRequest: refused; nothing was stored.
        """
        if not 2 <= num <= MOST_SAMPLES:
            raise UsageError(f"2 to {MOST_SAMPLES} answers can be compared, not {num}")
        with conversation.occupied():
            path = to_last_question(conversation.turns)
            if not prompts.has_usable_ids(self._template, path):
                raise UsageError(
                    "this conversation was written with another tokenizer; retry it once instead"
                )
            yield from self._run(conversation, path, several(sampling, num))

    def take(self, conversation: Conversation, answer: Turn) -> None:
        """Go on with one candidate, on a branch of its own.

        Raises:
            UsageError: an answer is being written there.
        """
        with conversation.occupied():
            before = conversation.branch
            branch = self._store.create_branch(before.session_id, leaf_id=answer.id, beside=before.name)
            self._answering.release(conversation)
            conversation.branch, conversation.turns = branch, self._store.turns_to(answer.id)

    def _run(
        self, conversation: Conversation, path: tuple[Turn, ...], sampling: SamplingParams
    ) -> Iterator[SampleEvent]:
        prompt = path_token_ids(path)
        assert prompt is not None
        info = self._engine.info()
        request = Request(
            token_ids=prompt,
            sampling=with_ends(sampling, self._template.end_ids, info.vocab_size),
            owner=conversation.session.id,
            priority=ON_SCREEN,
            stop=self._template.stop_matcher(prompt),
            namespace=namespace_of(conversation.session, path, len(prompt)),
            checkpoints=self._answering.checkpoints(conversation.session, path),
        )
        handle = self._engine.submit(request)
        conversation.watch(handle)
        turns = [prompts.empty_answer(self._template, path[-1]) for _ in range(sampling.n)]
        answers = [Answer(self._store, turn, self._template.stream(prompt)) for turn in turns]
        self._store.add_answers(turns)
        for answer in answers:
            answer.mark(model=self._answering.model, fingerprint=info.fingerprint, exact=info.is_exact)
        yield from self._grow(handle, answers)

    def _grow(self, handle: RequestHandle, answers: Sequence[Answer]) -> Iterator[SampleEvent]:
        finished: RequestFinished | None = None
        problem: str | None = None
        try:
            while finished is None:
                for event in handle.take_events(_WAIT_S):
                    if isinstance(event, TokenEmitted):
                        answers[event.sample].take(event.token_id)
                    elif isinstance(event, PrefillProgress):
                        yield prefill_of(event)
                    elif isinstance(event, RequestFinished):
                        finished = event
                yield from _pieces(answers)
            problem = finished.error
        except EngineFailed as error:
            problem = str(error)
        finally:
            if finished is None:
                handle.cancel()
            done = self._end(answers, finished)
            self._release(handle, finished)
        yield SamplesFinished(answers=done, error=problem)

    def _end(self, answers: Sequence[Answer], finished: RequestFinished | None) -> tuple[Turn, ...]:
        """Store how each candidate ended; the prompt's cost is the first one's alone."""
        return tuple(
            answer.finish_or_abandon(self._outcome(number, answer, finished))
            for number, answer in enumerate(answers)
        )

    def _outcome(self, number: int, answer: Answer, finished: RequestFinished | None) -> Outcome:
        if finished is None:
            return Outcome(finish=Finish.INTERRUPTED)
        closed = self._template.is_closed(answer.token_ids)
        end = next((end for end in finished.samples if end.sample == number), None)
        if end is None:
            return outcome_of(finished, closed=closed)
        usage = replace(finished.usage, completion_tokens=end.completion_tokens)
        return outcome_of(replace(finished, reason=end.reason, usage=usage), closed=closed)

    def _release(self, handle: RequestHandle, finished: RequestFinished | None) -> None:
        ends = finished.samples if finished is not None else ()
        for branch in dict.fromkeys([*(end.sequence for end in ends), handle.sequence]):
            with suppress(KvchatError):
                self._engine.release(branch)


def several(sampling: SamplingParams, num: int) -> SamplingParams:
    """Return sampling of `num` answers that can differ; of one seed each draws with its own."""
    temperature = sampling.temperature or DIFFERING_TEMPERATURE
    return replace(sampling, n=num, temperature=temperature, best_of=None, beam_width=None)


def differing(sampling: SamplingParams) -> SamplingParams:
    """Return sampling of an answer that can differ from one that was sampled so before."""
    return replace(several(sampling, 1), seed=None)


def _pieces(answers: Sequence[Answer]) -> Iterator[SampleDelta]:
    for number, answer in enumerate(answers):
        for piece in answer.store_pending() if answer.is_due else ():
            yield SampleDelta(sample=number, text=piece.text, reasoning=piece.reasoning)
