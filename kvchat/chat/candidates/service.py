"""Candidate service: several answers at once from one computed prompt, another token, asides, read-ahead.

Every candidate is a turn of its own behind the same question, stored as it grows. When one is chosen, the
others lose their blocks and their branch names; their text stays in the session's tree.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from time import time

from kvchat.chat.candidates.token_fork import TokenForks
from kvchat.chat.conversation import BEHIND, Answering, Conversation
from kvchat.chat.engine_client import EngineClient, RequestHandle, events_of
from kvchat.chat.events import MOST_SAMPLES, EditCost, SampleDelta, SampleEvent, SamplesFinished
from kvchat.chat.recorder import Answer, outcome_of
from kvchat.chat.revision import common_ids, path_cost, to_last_question
from kvchat.engine.api.events import PrefillProgress, RequestFinished, TokenEmitted
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import EngineFailed, KvchatError, UsageError
from kvchat.session.kv.provenance import namespace_of
from kvchat.session.store import Outcome, new_session_id
from kvchat.session.template import prompts
from kvchat.session.tree import Finish, Session, Turn, path_token_ids

DIFFERING_TEMPERATURE = 0.8
"""For those who sample greedily: greedy answers are all the same."""
_WAIT_S = 0.05


class ReadAhead:
    """Computes a prompt that nobody has sent yet, behind everything else."""

    def __init__(self, answering: Answering, request: Request) -> None:
        self.num_tokens = len(request.token_ids)
        self._answering = answering
        self._engine: EngineClient = answering.engine
        self._request = request
        self._lock = Lock()
        self._is_stopped = False
        self._handle: RequestHandle | None = None

    def run(self) -> None:
        """Wait until it is computed or stopped; in a thread of its own. Its blocks are held until `stop`.

        Raises:
            KvchatError: the engine refuses it, and will refuse the message too, or could not compute it.
        """
        with self._lock:
            if self._is_stopped or not self.num_tokens:
                return
            handle = self._handle = self._engine.submit(self._request)
        for event in events_of(handle):
            if isinstance(event, RequestFinished) and event.error is not None:
                raise EngineFailed(event.error)

    def stop(self) -> None:
        """End it: the message is sent or given up. What was computed stays cached. From any thread."""
        with self._lock:
            self._is_stopped = True
            handle, self._handle = self._handle, None
        if handle is not None:
            handle.cancel()
            with suppress(KvchatError):
                self._engine.release(handle.sequence)

    def hand_over(self, conversation: Conversation) -> None:
        """Let a conversation's next message find what was computed. Waits for the engine.

        A live branch goes on from its own end and looks nowhere else, so it is let go of where more is known.
        """
        known = self._engine.reusable_len(self._request.token_ids, self._request.namespace)
        if known > len(conversation.token_ids or ()):
            self._answering.release(conversation)
        self.stop()


class CandidateService:
    """What `Chat` offers besides one answer after the other."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    # Several answers

    def compare(
        self, conversation: Conversation, num: int, sampling: SamplingParams
    ) -> Iterator[SampleEvent]:
        """Yield the events of `num` candidates; whoever closes this keeps them as far as they are.

        Raises:
            UsageError: there is no question, or `num` is out of range.
            CapacityError, InvalidRequest: refused; nothing was stored.
        """
        if not 2 <= num <= MOST_SAMPLES:
            raise UsageError(f"2 to {MOST_SAMPLES} answers can be compared, not {num}")
        with conversation.occupied():
            path = to_last_question(conversation.turns)
            if not prompts.has_usable_ids(self._answering.template, path):
                raise UsageError(
                    "this conversation was written with another tokenizer; retry it once instead"
                )
            yield from self._compare(conversation, path, several(sampling, num))

    def take(self, conversation: Conversation, answer: Turn) -> None:
        """Go on with one candidate, on a branch of its own.

        Raises:
            UsageError: an answer is being written there.
        """
        with conversation.occupied():
            self._answering.branch_off(conversation, self._answering.store.turns_to(answer.id))

    def retry_cost(self, conversation: Conversation) -> EditCost:
        """Return exactly what answering the last question again costs now. Waits for the engine."""
        return self._path_cost(conversation, to_last_question(conversation.turns))

    def reach(self, conversation: Conversation) -> EditCost:
        """Return how much of a conversation need not be computed before its next message."""
        return self._path_cost(conversation, conversation.turns)

    def _path_cost(self, conversation: Conversation, path: tuple[Turn, ...]) -> EditCost:
        ids = path_token_ids(path) or ()
        namespace = namespace_of(conversation.session, path)
        reused = self._answering.engine.reusable_len(ids, namespace) if ids else 0
        return path_cost(len(ids), reused, conversation.turns[len(path) :])

    @property
    def tokens(self) -> TokenForks:
        return TokenForks(self._answering)

    # Asides

    def throw_away(self, aside: Conversation, back: Conversation) -> bool:
        """Delete what was said on a fork behind the place where it began; return whether that was possible.

        Args:
            aside: the fork; it is closed.
            back: the conversation that it was forked from.

        Returns: False where another branch rests on the aside; then it stays.

        Raises: StorageError: somebody has gone on there meanwhile; nothing was deleted.
        """
        store = self._answering.store
        self._answering.release(aside)
        here = {turn.id for turn in back.turns}
        own = [turn.id for turn in aside.turns if turn.id not in here]
        others = [one for one in store.branches(aside.session.id) if one.name != aside.branch.name]
        if own and any(store.path_holds(one.leaf_id, own[0]) for one in others):
            return False
        store.delete_branch(aside.branch, back.branch, own)
        return True

    # Reading ahead

    def read_ahead(self, conversation: Conversation | None, system: str, text: str) -> ReadAhead:
        """Return what computes the beginning that all messages have that begin with `text`.

        Args:
            conversation: where it will be sent; None for one that is not stored yet, with this `system`.
        """
        session = conversation.session if conversation is not None else _draft(system)
        path = conversation.turns if conversation is not None else ()
        request = Request(
            token_ids=common_ids(self._answering.template, session, path, text),
            sampling=SamplingParams(max_tokens=1),
            owner=session.id if conversation is not None else "",
            priority=BEHIND,
            namespace=namespace_of(session, path) if conversation is not None else session.namespace,
            is_saved=False,
            checkpoints=self._answering.checkpoints_of(session, path, text),
        )
        return ReadAhead(self._answering, request)

    def beginning_ids(self, system: str, began_at: float) -> tuple[int, ...]:
        """Return what every conversation begins with that has this system prompt and began then."""
        session = replace(_draft(system), created_at=began_at)
        return common_ids(self._answering.template, session, (), "")

    def read(self, token_ids: tuple[int, ...]) -> ReadAhead:
        """Return what computes the beginning of conversations that are not stored yet, and saves it."""
        request = Request(token_ids=token_ids, sampling=SamplingParams(max_tokens=1), priority=BEHIND)
        return ReadAhead(self._answering, request)

    def words(self, token_ids: Sequence[int]) -> str:
        """Return what tokens say, control tokens by their names."""
        return self._answering.template.tokenizer.decode(list(token_ids), keep_control=True)

    def num_tokens(self, text: str) -> int:
        return len(self._answering.template.tokenizer.encode(text))

    # The growth of several answers

    def _compare(
        self, conversation: Conversation, path: tuple[Turn, ...], sampling: SamplingParams
    ) -> Iterator[SampleEvent]:
        store, template, engine = self._answering.store, self._answering.template, self._answering.engine
        prompt = path_token_ids(path)
        assert prompt is not None
        info = engine.info()
        handle = engine.submit(self._answering.request(conversation, path, sampling))
        conversation.watch(handle)
        turns = [prompts.empty_answer(template, path[-1]) for _ in range(sampling.n)]
        answers = [Answer(store, turn, template.stream(prompt)) for turn in turns]
        store.add_answers(turns)
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
                        yield event
                    elif isinstance(event, RequestFinished):
                        finished = event
                yield from _pieces(answers)
            problem = finished.error
        except EngineFailed as error:
            problem = str(error)
        finally:
            if finished is None:
                handle.cancel()
            done = tuple(
                answer.finish_or_abandon(self._outcome(number, answer, finished))
                for number, answer in enumerate(answers)
            )
            self._release(handle, finished)
        yield SamplesFinished(answers=done, error=problem)

    def _outcome(self, number: int, answer: Answer, finished: RequestFinished | None) -> Outcome:
        if finished is None:
            return Outcome(finish=Finish.INTERRUPTED)
        closed = self._answering.template.is_closed(answer.token_ids)
        end = next((end for end in finished.samples if end.sample == number), None)
        if end is None:
            return outcome_of(finished, closed=closed)
        usage = replace(finished.usage, completion_tokens=end.completion_tokens)
        return outcome_of(replace(finished, reason=end.reason, usage=usage), closed=closed)

    def _release(self, handle: RequestHandle, finished: RequestFinished | None) -> None:
        ends = finished.samples if finished is not None else ()
        for branch in dict.fromkeys([*(end.sequence for end in ends), handle.sequence]):
            with suppress(KvchatError):
                self._answering.engine.release(branch)


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


def _draft(system: str) -> Session:
    return Session(id=new_session_id(), title="", system=system, model="", created_at=time(), updated_at=0.0)
