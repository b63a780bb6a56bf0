"""One turn of a conversation: session and engine in, chat events out.

The service that the interface and the command line call. It knows the engine only as `EngineClient`, so it runs
with torch absent, and the session only through the store and the template. What it shows is on disk first:
token ids and text reach the database before they are yielded.
"""

from dataclasses import dataclass
from typing import Protocol

from kvchat.engine.api.config import EngineInfo
from kvchat.engine.api.events import Event, Loaded
from kvchat.engine.api.ids import BranchId, RequestId
from kvchat.engine.api.request import Request
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.engine.api.status import EnginePhase as EnginePhase
from kvchat.engine.api.status import EngineStatus as EngineStatus
from kvchat.session.tree import Turn


class RequestHandle(Protocol):
    """A request on its way."""

    @property
    def request_id(self) -> RequestId: ...

    @property
    def branch(self) -> BranchId: ...

    def take_events(self, timeout_s: float) -> tuple[Event, ...]:
        """Return what happened since the last call; wait up to `timeout_s` for the first event.

        Raises:
            EngineFailed: the engine died; no further event will come.
        """
        ...

    def cancel(self) -> None:
        """Ask the engine to stop after the current step; a RequestFinished still follows."""
        ...


class EngineClient(Protocol):
    """The engine as chat sees it. Every method may be called from any thread."""

    def status(self) -> EngineStatus: ...

    def info(self) -> EngineInfo:
        """Return the loaded engine's description; blocks while it loads.

        Raises:
            KvchatError: the model could not be loaded, or the engine has failed.
        """
        ...

    def submit(self, request: Request) -> RequestHandle:
        """Hand in a request; blocks while the engine loads.

        Raises:
            InvalidRequest, CapacityError: this request can never run; the engine goes on.
            EngineFailed: the engine died.
        """
        ...

    def fork(self, branch: BranchId) -> BranchId: ...

    def release(self, branch: BranchId) -> None:
        """Let go of a live branch; its blocks stay cached. Unknown or released branches are ignored."""
        ...

    def snapshot(self) -> CacheSnapshot | None:
        """Return the newest snapshot, None before the engine is loaded. Never blocks."""
        ...

    def close(self) -> None:
        """Save tails, stop the thread, free the memory."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    """The question is stored (None when an answer is retried or continued) and the answer has an id."""

    question: Turn | None
    answer: Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """How much of the prompt is reused and computed so far, in tokens."""

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    loaded: Loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """More text of the answer. `reasoning`: it belongs to the model's reasoning."""

    text: str
    reasoning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished:
    """The answer as stored. Last event of a turn."""

    answer: Turn
    error: str | None = None


ChatEvent = TurnStarted | Prefill | TextDelta | TurnFinished
