"""Chat with a server: the same sessions, branches and events, without token ids.

The server decides what it computes and caches, so nothing here is exact, no block is ours, and what it does
not report is unknown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import monotonic, time
from typing import NoReturn

from kvchat.chat.candidates.service import CandidateService
from kvchat.chat.conversation import Answering, Conversation, Undo
from kvchat.chat.events import ChatEvent, EditCost, Revision, TurnFinished, TurnStarted
from kvchat.chat.revision import split_at
from kvchat.chat.service import Chat
from kvchat.engine.api.events import Timings, Usage
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import InvalidRequest, KvchatError, ModelNotFound, UsageError
from kvchat.remote.endpoint import RemoteServer, RemoteStream, Report
from kvchat.remote.null_engine import NullEngine
from kvchat.session.cache_miss import Explanation
from kvchat.session.store import Outcome, SessionStore, new_turn_id
from kvchat.session.template import prompts
from kvchat.session.tree import Backend, Finish, Role, Session, SessionId, Turn, TurnId

_FINISH = {"stop": Finish.COMPLETE, "length": Finish.LENGTH}


class RemoteChat(Chat):
    """Conversations with a model of a server. Where `Chat` has a template, this has none."""

    def __init__(
        self,
        *,
        store: SessionStore,
        endpoint: RemoteServer,
        model: str,
        sampling: SamplingParams | None = None,
    ) -> None:
        self.store = store
        self.engine: NullEngine = NullEngine(endpoint, model)
        self.adapter = ""
        self.beginnings = {}
        self.sampling = sampling or SamplingParams()
        self.endpoint = endpoint
        self.use_model(model)

    def use_model(self, model: str) -> None:
        """Go on with another model of the server."""
        self.model = model
        self.engine.use_model(model)
        self._answering = RemoteAnswering(self.store, self.endpoint, model)
        self.variants = RemoteVariants(self._answering)

    def continue_answer(
        self, conversation: Conversation, sampling: SamplingParams | None = None
    ) -> Iterator[ChatEvent]:
        raise UsageError("a server cannot go on in the middle of an answer; retry it, or ask it to go on")

    def revision_cost(self, conversation: Conversation, revision: Revision) -> EditCost:
        return _unknown(revision.left)

    def edit_cost(self, conversation: Conversation, turn_id: TurnId, text: str) -> EditCost:
        return _unknown(split_at(conversation.turns, turn_id)[1])

    def why(self, conversation: Conversation, answer_id: TurnId) -> Explanation:
        raise UsageError("why a server computed what it did is unknown: it does not say")

    def notices(self, conversation: Conversation) -> tuple[str, ...]:
        return ()

    def _mended(self, session: Session, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        return turns  # what is damaged of a turn is mended by its model's tokenizer

    def _can_read(self, path: tuple[Turn, ...]) -> bool:
        return True  # a server reads text

    def _behind(self, session: Session, path: Sequence[Turn], turn: Turn) -> Turn:
        return replace(turn, id=new_turn_id(), parent_id=path[-1].id if path else None, usage=Usage())

    def _question(self, conversation: Conversation, text: str) -> Turn:
        parent_id = conversation.turns[-1].id if conversation.turns else None
        return self._turn(conversation.session.id, parent_id, Role.USER, text)

    def _empty_answer(self, asked: Turn) -> Turn:
        answer = self._turn(asked.session_id, asked.id, Role.ASSISTANT, "")
        return replace(answer, finish=Finish.PARTIAL, model=self.model)

    def _turn(self, session_id: SessionId, parent_id: TurnId | None, role: Role, text: str) -> Turn:
        return Turn(
            id=new_turn_id(),
            session_id=session_id,
            parent_id=parent_id,
            role=role,
            text=text,
            token_ids=None,
            finish=Finish.COMPLETE,
            created_at=time(),
            exact=False,
            backend=Backend(url=self.endpoint.url),
        )


class RemoteAnswering(Answering):
    """Lets the last turn of a conversation grow to its end, as a server sends it."""

    def __init__(self, store: SessionStore, endpoint: RemoteServer, model: str) -> None:
        self.store = store
        self.model = model
        self._endpoint = endpoint

    def run(
        self, conversation: Conversation, question: Turn | None, sampling: SamplingParams, take_back: Undo
    ) -> Iterator[ChatEvent]:
        turn = conversation.turns[-1]
        growth = _Growth(self.store, turn)
        try:
            yield TurnStarted(question=question, answer=turn)
            messages = prompts.history(conversation.session, conversation.turns[:-1])[:-1]
            stream = self._endpoint.ask(self.model, messages, sampling, watch=conversation.watch)
            yield from growth.follow(stream)
        except (InvalidRequest, ModelNotFound):
            take_back()
            raise
        except BaseException as error:
            growth.break_off(error)
            conversation.show_last(self.store.turn(turn.id))
            if growth.first_s is None or not isinstance(error, KvchatError):
                raise
            yield TurnFinished(answer=conversation.turns[-1], error=str(error))
            return
        conversation.show_last(self.store.finish_answer(turn.id, growth.outcome(stream)))
        yield TurnFinished(answer=conversation.turns[-1])

    def release(self, conversation: Conversation) -> None:
        conversation.engine_sequence = None


class _Growth:
    """An answer on its way from a server into the store."""

    def __init__(self, store: SessionStore, turn: Turn) -> None:
        self.first_s: float | None = None
        """When the first piece came."""
        self._store = store
        self._turn = turn
        self._start_s = self._last_s = monotonic()
        self._stream: RemoteStream | None = None

    def follow(self, stream: RemoteStream) -> Iterator[ChatEvent]:
        """Store each piece and pass it on."""
        self._stream = stream
        for delta in stream:
            self._last_s = monotonic()
            self.first_s = self.first_s or self._last_s
            text, reasoning = ("", delta.text) if delta.reasoning else (delta.text, "")
            self._store.append_to_answer(self._turn.id, (), text, reasoning)
            yield delta

    def break_off(self, error: BaseException) -> None:
        """End the connection and keep what has come."""
        if self._stream is not None:
            self._stream.cancel()
        finish = Finish.ERROR if isinstance(error, KvchatError) else Finish.INTERRUPTED
        try:
            self._store.finish_answer(self._turn.id, Outcome(finish=finish))
        except KvchatError:
            self._store.abandon_answer(self._turn.id)

    def outcome(self, stream: RemoteStream) -> Outcome:
        report = stream.report
        finish = _FINISH.get(report.finish_reason or "", Finish.COMPLETE)
        assert self._turn.backend is not None
        return Outcome(
            finish=Finish.INTERRUPTED if stream.is_cancelled else finish,
            usage=_usage(report),
            timings=self._timings(report),
            backend=replace(
                self._turn.backend,
                counts_tokens=report.prompt_tokens is not None,
                counts_cached=report.prompt_tokens is not None and report.cached_tokens is not None,
            ),
        )

    def _timings(self, report: Report) -> Timings:
        first_s, num_tokens = self.first_s, report.completion_tokens
        rate = None
        if first_s is not None and self._last_s > first_s and num_tokens is not None and num_tokens > 1:
            rate = (num_tokens - 1) / (self._last_s - first_s)
        return Timings(
            ttft_s=None if first_s is None else first_s - self._start_s,
            total_s=monotonic() - self._start_s,
            decode_tokens_per_s=rate,
        )


class RemoteVariants(CandidateService):
    """What a server cannot do is refused; an aside can be thrown away as ever."""

    def compare(self, conversation: Conversation, num: int, sampling: SamplingParams) -> NoReturn:
        _refuse("several answers at once")

    def retry_cost(self, conversation: Conversation) -> NoReturn:
        _refuse("what an answer will cost")

    def reach(self, conversation: Conversation) -> NoReturn:
        _refuse("what is kept of a conversation")

    @property
    def tokens(self) -> NoReturn:
        _refuse("tokens")

    def read_ahead(self, conversation: Conversation | None, system: str, text: str) -> NoReturn:
        _refuse("reading ahead")

    def num_tokens(self, text: str) -> NoReturn:
        raise UsageError("read by the server when you send it")


def _refuse(what: str) -> NoReturn:
    raise UsageError(f"{what}: there is none with --remote, since only the text goes to the server and back")


def _usage(report: Report) -> Usage:
    prompt, cached = report.prompt_tokens or 0, report.cached_tokens or 0
    cached = min(cached, prompt)
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        computed_tokens=prompt - cached,
        completion_tokens=report.completion_tokens or 0,
    )


def _unknown(left: Sequence[Turn]) -> EditCost:
    return EditCost(reused_tokens=0, computed_tokens=0, left_turns=len(left), left_tokens=0, is_known=False)
