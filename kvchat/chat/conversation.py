"""An open conversation, and the growth of its last answer: engine events in, chat events out.

Token ids and text are stored before they are yielded.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Event as StopFlag
from threading import Lock

from kvchat.chat.engine_client import AnswerHandle, EngineClient, RequestHandle
from kvchat.chat.events import ChatEvent, TurnFinished, TurnStarted
from kvchat.chat.recorder import Answer, AnswerRecorder, outcome_of
from kvchat.chat.revision import checkpoints
from kvchat.engine.api.events import RequestFinished
from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import CapacityError, EngineFailed, InvalidRequest, KvchatError, UsageError
from kvchat.session.kv.provenance import namespace_of
from kvchat.session.store import Outcome, SessionStore
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import Branch, BranchName, Finish, Role, Session, Turn, path_token_ids

Undo = Callable[[], None]

ON_SCREEN = 0
BEHIND = 1
"""Priorities of the conversation that a person looks at, and of those that go on behind it."""

_STOP_S = 1.0
"""How long the model may take to stop before what it samples then is given up."""


class Conversation:
    """An open session at one branch. `Chat` changes it; everyone may read it, from any thread."""

    def __init__(self, session: Session, branch: Branch, turns: tuple[Turn, ...]) -> None:
        self.session = session
        self.branch = branch
        self.turns = turns
        """The path from the first message to the branch's leaf."""
        self.diverged_from: BranchName | None = None
        """The branch that the message being answered was meant for, where another process had moved it."""
        self.engine_sequence: SequenceId | None = None
        """The live branch that holds this path in the engine's cache, if there is one."""
        self.is_closed = False
        """Nobody will go on from here, so no sequence stays live."""
        self._busy = Lock()
        self._stop = StopFlag()
        self._keeps_stop = False
        self.recorder: AnswerRecorder | None = None
        """What stores the answer in progress."""
        self._handle: AnswerHandle | None = None
        self._priority = ON_SCREEN

    @property
    def priority(self) -> int:
        """How important its answers are to the engine; set from any thread, also while one is written."""
        return self._priority

    @priority.setter
    def priority(self, priority: int) -> None:
        self._priority = priority
        handle = self._handle
        if handle is not None:
            handle.prioritise(priority)

    @property
    def is_busy(self) -> bool:
        return self._busy.locked()

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """What the model has seen; None where a turn has no ids."""
        return path_token_ids(self.turns)

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Keep a second answer out while one is in progress.

        Raises:
            UsageError: one is.
        """
        if not self._busy.acquire(blocking=False):
            raise UsageError("this conversation is still being answered; stop the answer or wait for its end")
        if not self._keeps_stop:
            self._stop.clear()
        self.diverged_from = None
        try:
            yield
        finally:
            self._handle = None
            self.recorder = None
            self._busy.release()

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Let a stop that is asked for from here on count for the answers inside, also before they begin."""
        self._stop.clear()
        self._keeps_stop = True
        try:
            yield
        finally:
            self._keeps_stop = False

    def watch(self, handle: AnswerHandle) -> None:
        """Let `stop` and `priority` reach a request."""
        self._handle = handle
        handle.prioritise(self._priority)
        if self.is_stopping:
            handle.cancel()

    def stop(self) -> None:
        """Ask the answer in progress to end; from any thread."""
        self._stop.set()
        handle = self._handle
        if handle is not None:
            handle.cancel()

    def show_last(self, turn: Turn) -> None:
        """Show another state of the last turn."""
        self.turns = (*self.turns[:-1], turn)


class Answering:
    """Lets the last turn of a conversation grow to its end. `model`: its name, stored with the answer."""

    def __init__(
        self, *, store: SessionStore, template: ChatTemplate, engine: EngineClient, model: str
    ) -> None:
        self.store = store
        self.template = template
        self.engine = engine
        self.model = model

    def run(
        self, conversation: Conversation, question: Turn | None, sampling: SamplingParams, take_back: Undo
    ) -> Iterator[ChatEvent]:
        """Yield the events of one answer; however it ends, it is stored.

        Args:
            conversation: its last turn is PARTIAL and grows.
            question: the question that was stored with it, if one was.
            take_back: undoes what was stored for this answer, if the engine refuses the request.
        """
        prompt = path_token_ids(conversation.turns[:-1])
        turn = conversation.turns[-1]
        assert prompt is not None
        assert turn.finish is Finish.PARTIAL
        answer = Answer(self.store, turn, self.template.stream(prompt, turn.token_ids or ()))
        try:
            yield TurnStarted(question=question, answer=turn)
            outcome, problem = yield from self._compute(conversation, answer, sampling)
            ended = answer.finish(outcome)
        except BaseException as error:
            if conversation.recorder is None and isinstance(error, (CapacityError, InvalidRequest)):
                take_back()
            else:
                self._break_off(conversation, answer, error)
            raise
        conversation.show_last(ended)
        finished = None if conversation.recorder is None else conversation.recorder.finished
        fits_in = () if finished is None else finished.fits_in
        notices = self.store.take_notices()
        yield TurnFinished(answer=ended, error=problem, fits_in=fits_in, notices=notices)

    def release(self, conversation: Conversation) -> None:
        """Let go of a conversation's live branch."""
        branch, conversation.engine_sequence = conversation.engine_sequence, None
        if branch is not None:
            with suppress(KvchatError):
                self.engine.release(branch)

    def branch_off(self, conversation: Conversation, path: tuple[Turn, ...]) -> Undo:
        """Move a conversation to a new branch that ends with `path`; the result moves it back."""
        before, turns = conversation.branch, conversation.turns
        branch = self.store.create_branch(
            before.session_id, leaf_id=path[-1].id if path else None, beside=before.name
        )
        # The live branch holds the other continuation; the engine finds the blocks both share.
        self.release(conversation)
        conversation.branch, conversation.turns = branch, path

        def undo() -> None:
            self.store.delete_branch(conversation.branch, before)
            conversation.branch, conversation.turns = before, turns

        return undo

    def _compute(
        self, conversation: Conversation, answer: Answer, sampling: SamplingParams
    ) -> Generator[ChatEvent, None, tuple[Outcome, str | None]]:
        """Submit the request and pass on what comes; return how it ended and, after a failure, why."""
        try:
            request = self._request(conversation, answer, sampling)
            if conversation.is_stopping:
                return Outcome(finish=Finish.INTERRUPTED), None
            recorder = AnswerRecorder(self._submit(conversation, request), answer)
            conversation.recorder = recorder
            for item in recorder.recorded():
                if not isinstance(item, RequestFinished):
                    yield item
        except EngineFailed as error:
            conversation.engine_sequence = None
            return Outcome(finish=Finish.ERROR), str(error)
        finished = recorder.finished
        assert finished is not None
        if finished.error is not None or conversation.is_closed:
            self.release(conversation)
        outcome = replace(self._outcome(finished, answer), stored=recorder.stored)
        return outcome, finished.error

    def _request(self, conversation: Conversation, answer: Answer, sampling: SamplingParams) -> Request:
        """Return the request and note which weights answer it. Blocks while the engine loads."""
        info = self.engine.info()
        answer.mark(model=self.model, fingerprint=info.fingerprint, exact=info.is_exact)
        if conversation.session.adapter != (adapter := info.adapter or ""):
            self.store.note_adapter(conversation.session.id, adapter)
            conversation.session = replace(conversation.session, adapter=adapter)
        so_far, sequence = tuple(answer.token_ids), conversation.engine_sequence
        return self.request(conversation, conversation.turns[:-1], sampling, so_far, sequence)

    def request(
        self,
        conversation: Conversation,
        path: tuple[Turn, ...],
        sampling: SamplingParams,
        so_far: tuple[int, ...] = (),
        sequence: SequenceId | None = None,
    ) -> Request:
        """Return the request of an answer to a path, whose turns have ids.

        Args:
            so_far: what there is of the answer.
            sequence: the live one that holds the path; None: find what is cached.
        """
        prompt = path_token_ids(path)
        assert prompt is not None
        return Request(
            token_ids=prompt + so_far,
            sampling=with_ends(sampling, self.template.end_ids, self.engine.info().vocab_size),
            owner=conversation.session.id,
            priority=conversation.priority,
            sequence=sequence,
            stop=self.template.stop_matcher(prompt, so_far),
            namespace=namespace_of(conversation.session, path, len(prompt)),
            checkpoints=self.checkpoints(conversation.session, path),
        )

    def checkpoints(self, session: Session, path: Sequence[Turn]) -> tuple[int, ...]:
        """Return where states are to be kept of a prompt that ends with a question; see `revision`."""
        if not path or path[-1].role is not Role.USER:
            return ()
        return self.checkpoints_of(session, path[:-1], path[-1].text)

    def checkpoints_of(self, session: Session, path: Sequence[Turn], text: str) -> tuple[int, ...]:
        """Return where states are to be kept of the prompt of a question behind a path."""
        if not self.engine.info().keeps_states:
            return ()
        return checkpoints(self.template, session, path, text)

    def _submit(self, conversation: Conversation, request: Request) -> RequestHandle:
        """Hand in a request, keep its branch as the conversation's live one, and let `stop` reach it."""
        try:
            handle = self.engine.submit(request)
        except InvalidRequest:
            if request.sequence is None:
                raise
            # The engine has let go of the branch; it finds the same blocks by their ids.
            self.release(conversation)
            handle = self.engine.submit(replace(request, sequence=None))
        conversation.engine_sequence = handle.sequence
        conversation.watch(handle)
        return handle

    def _break_off(self, conversation: Conversation, answer: Answer, error: BaseException) -> None:
        """Stop the model, store what it had sampled, and let go of the live branch.

        Tokens may have been lost on the way, so the branch may hold more than is stored; the next request
        finds its blocks by their ids.
        """
        recorder = conversation.recorder
        if recorder is not None:
            recorder.stop(_STOP_S)
        self.release(conversation)
        outcome = Outcome(finish=Finish.ERROR if isinstance(error, KvchatError) else Finish.INTERRUPTED)
        if recorder is not None and recorder.finished is not None:
            outcome = self._outcome(recorder.finished, answer)
        with suppress(KvchatError):
            conversation.show_last(answer.finish_or_abandon(outcome))

    def _outcome(self, finished: RequestFinished, answer: Answer) -> Outcome:
        return outcome_of(finished, closed=self.template.is_closed(answer.token_ids))


def with_ends(sampling: SamplingParams, end_ids: frozenset[int], vocab_size: int) -> SamplingParams:
    """Return sampling that also ends at the template's end of turn; not every configuration names it."""
    if sampling.ignore_eos:
        return sampling
    ends = set(sampling.stop_token_ids) | {end for end in end_ids if end < vocab_size}
    return replace(sampling, stop_token_ids=tuple(sorted(ends)))
