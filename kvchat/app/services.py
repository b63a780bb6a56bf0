"""Services that the interface uses, and events on their way from an answer's thread to the screen.

The producer appends to a deque and the screen drains it thirty times a second: that costs the producer
microseconds per token, a call into the event loop would cost a millisecond. It calls only where something new
begins, such as the first word.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from threading import Thread
from time import monotonic
from typing import Any, Protocol

from kvchat.chat.events import Alternative as Alternative
from kvchat.chat.events import ChatEvent, EditCost, Revision
from kvchat.chat.events import Prefill as Prefill
from kvchat.chat.events import SampleDelta as SampleDelta
from kvchat.chat.events import SampleEvent as SampleEvent
from kvchat.chat.events import SamplesFinished as SamplesFinished
from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.inspection import InspectedBlock, InspectionRequest
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.engine.api.status import EngineStatus
from kvchat.platform.values import dataclass
from kvchat.session.cache_miss import Explanation
from kvchat.session.lookup import SearchHit, SessionSummary
from kvchat.session.tree import Branch, Session, SessionId, Turn, TurnId
from kvchat.session.unsent_drafts import LentDraft


class ConversationView(Protocol):
    """An open branch of a session, as `Chat.open` returns it."""

    @property
    def session(self) -> Session: ...

    @property
    def branch(self) -> Branch: ...

    @property
    def turns(self) -> Sequence[Turn]: ...

    @property
    def engine_sequence(self) -> SequenceId | None:
        """The live branch that holds this conversation in the engine's cache, if there is one."""
        ...

    def stoppable(self) -> AbstractContextManager[None]:
        """Let a stop that is asked for from here on count for the answers inside, also before they begin."""
        ...


class UnsentTexts(Protocol):
    """What was written and not sent, for each session, and for None: one that has not begun."""

    def keep(self, session_id: str | None, text: str, branch: str | None = None) -> None: ...

    def lent(
        self, session_id: str | None, elsewhere: Collection[str] = ()
    ) -> AbstractContextManager[LentDraft]:
        """Lend what is kept, but not for the branches `elsewhere`, to nobody else meanwhile; it is kept no
        longer once the block has ended well.
        """
        ...


class SessionCatalog(Protocol):
    """The stored sessions, as `Chat.store` offers them."""

    @property
    def unsent(self) -> UnsentTexts: ...

    def list_sessions(self) -> Sequence[SessionSummary]: ...

    def branches(self, session_id: SessionId) -> Sequence[Branch]: ...

    def rename(self, session_id: SessionId, title: str) -> object: ...

    def pin(self, session_id: SessionId, *, is_pinned: bool) -> object: ...

    def search(self, text: str) -> Sequence[SearchHit]: ...

    def recent_questions(self) -> Sequence[str]: ...

    def delete_session(self, session_id: SessionId) -> object: ...

    def remove_branch(self, session_id: SessionId, name: str) -> object:
        """Delete a branch with the messages that no other branch has."""
        ...

    def still_readable(self) -> Sequence[str]:
        """Return in which files deleted words may still be read, each with what to do about it."""
        ...


class Reading(Protocol):
    """The beginning of a message on its way into the cache."""

    num_tokens: int

    def run(self) -> None:
        """Wait until it is there, or stopped."""
        ...

    def stop(self) -> None: ...

    def hand_over(self, conversation: Any) -> None:
        """Let the next message of a conversation find it."""
        ...


class VariantService(Protocol):
    """`kvchat.chat.candidates.service.Variants`, as far as the interface uses it."""

    def compare(self, conversation: Any, num: int) -> Iterator[SampleEvent]: ...

    def take(self, conversation: Any, answer: Turn) -> None: ...

    @property
    def retry_temperature(self) -> float | None:
        """What another answer is sampled at where the settings give the same again; None: as they say."""
        ...

    def retry_cost(self, conversation: Any) -> EditCost: ...

    def reach(self, conversation: Any) -> EditCost: ...

    def token_texts(self, answer: Turn) -> Sequence[str]: ...

    def alternatives(self, conversation: Any, answer_id: TurnId, at: int) -> Sequence[Alternative]: ...

    def token_cost(self, conversation: Any, answer_id: TurnId, at: int) -> EditCost: ...

    def go_on_with(
        self, conversation: Any, answer_id: TurnId, at: int, token_id: int
    ) -> Iterator[ChatEvent]: ...

    def throw_away(self, aside: Any, back: Any) -> bool: ...

    def read_ahead(self, conversation: Any, system: str, text: str) -> Reading: ...

    def num_tokens(self, text: str) -> int: ...

    def words(self, token_ids: Sequence[int]) -> str: ...


class ChatService(Protocol):
    """The part of `kvchat.chat.service.Chat` that the interface uses; it opens and closes conversations."""

    @property
    def store(self) -> SessionCatalog: ...

    @property
    def variants(self) -> VariantService: ...

    def use_sampling(self, sampling: SamplingParams) -> None:
        """Choose tokens in another way from the next answer on."""
        ...

    def create(self, title: str = "", system: str = "") -> Any: ...

    def open(self, reference: str, branch: str | None = None) -> Any: ...

    def open_at(self, turn_id: TurnId) -> Any:
        """Open a branch that a message lies on."""
        ...

    def prefetch(self, reference: str | None, branch: str | None = None, beside: Any = None) -> None: ...

    def send(self, conversation: Any, text: str) -> Iterator[ChatEvent]: ...

    def continue_answer(self, conversation: Any) -> Iterator[ChatEvent]: ...

    def retry(self, conversation: Any) -> Iterator[ChatEvent]: ...

    def edit(self, conversation: Any, turn_id: TurnId, text: str) -> Iterator[ChatEvent]: ...

    def edit_cost(self, conversation: Any, turn_id: TurnId, text: str) -> EditCost: ...

    def plan_undo(self, conversation: Any, num: int = 1) -> Revision: ...

    def plan_drop(self, conversation: Any, question_id: TurnId) -> Revision: ...

    def revision_cost(self, conversation: Any, revision: Revision) -> EditCost: ...

    def revise(self, conversation: Any, revision: Revision) -> None: ...

    def why(self, conversation: Any, answer_id: TurnId) -> Explanation: ...

    def fork(self, conversation: Any, at: TurnId | None = None, name: str | None = None) -> Any: ...

    def stop(self, conversation: Any) -> None: ...

    def put_behind(self, conversation: Any) -> None: ...

    def bring_forward(self, conversation: Any) -> None: ...

    def close(self, conversation: Any) -> None: ...

    def notices(self, conversation: Any) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KvOnDisk:
    """What of a session's KV is stored: what no other session has, and what others have too."""

    own_bytes: int
    shared_bytes: int


class SessionFileService(Protocol):
    """What may be done with the files behind the sessions."""

    def on_disk(self, is_stopped: Callable[[], bool]) -> Mapping[SessionId, KvOnDisk]:
        """Count what of each session's KV is on disk; those that have none are not in it. Takes a while the
        first time; one call at a time.

        Args:
            is_stopped: whether nobody wants to know it any more.

        Raises:
            KvchatError: it cannot be counted.
        """
        ...

    def export(self, session_id: SessionId, branch: str, wish: str, *, force: bool = False) -> str:
        """Write a session to the file, or in the form, that a person names; return what was written.

        Raises:
            FileTaken: the file exists, and `force` is not given.
            KvchatError: it cannot be written.
        """
        ...

    def freed_by_deleting(self, session_id: SessionId, branch: str | None = None) -> str:
        """Say what deleting a session (or a branch) would free on the disk, and what of it would stay."""
        ...


class EngineView(Protocol):
    """What the interface reads of the engine."""

    def status(self) -> EngineStatus:
        """Return at once."""
        ...

    def snapshot(self) -> CacheSnapshot | None:
        """Return at once."""
        ...

    def inspect(self, request: InspectionRequest) -> tuple[InspectedBlock, ...]:
        """Return blocks; waits until the engine's step ends."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationOpened:
    """The turn's first message made a conversation."""

    conversation: ConversationView


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFailed:
    """The turn ended with an exception."""

    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """The producer is gone; nothing follows."""


Produced = ChatEvent | ConversationOpened | SampleDelta | SamplesFinished
FeedEvent = Produced | TurnFailed | TurnEnded


class TurnFeed:
    """One turn that runs in a thread of its own and is read from the event loop.

    The thread is a daemon: an engine that never answers must not keep the process alive. Chat stores every
    token before it yields it, so nothing is lost with the thread.

    Attributes:
        took_s: what the last turn took.
    """

    def __init__(self) -> None:
        self._events: deque[FeedEvent] = deque()
        self._thread: Thread | None = None
        self.took_s = 0.0

    @property
    def is_running(self) -> bool:
        """Whether events of a turn are still to come or to be taken."""
        return self._thread is not None

    @property
    def is_writing(self) -> bool:
        """Whether the turn's thread still runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, produce: Callable[[], Iterable[Produced]], wake: Callable[[], None]) -> None:
        """Run `produce` to its end in a thread.

        Args:
            wake: called in that thread when an event of another sort than the one before can be taken.
        """
        assert self._thread is None, "one turn at a time"
        self._thread = Thread(target=self._run, args=(produce, wake), name="kvchat-turn", daemon=True)
        self._thread.start()

    def take(self) -> list[FeedEvent]:
        """Return what came since the last call, oldest first; never blocks."""
        taken: list[FeedEvent] = []
        while self._events:
            taken.append(self._events.popleft())
        if taken and isinstance(taken[-1], TurnEnded):
            self._thread = None
        return taken

    def waiting(self) -> Sequence[FeedEvent]:
        """Return what can be taken, and leave it there."""
        return self._events.copy()

    def join(self, timeout_s: float) -> None:
        """Wait for the producer to end."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, produce: Callable[[], Iterable[Produced]], wake: Callable[[], None]) -> None:
        sort: type | None = None
        began_s = monotonic()
        try:
            for event in produce():
                self._events.append(event)
                if type(event) is not sort:
                    sort = type(event)
                    wake()
        except Exception as error:
            self._events.append(TurnFailed(error=error))
        self.took_s = monotonic() - began_s
        self._events.append(TurnEnded())
        wake()
