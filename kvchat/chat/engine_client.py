"""Engine client: the engine as chat sees it, in a thread of its own or in another process."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from kvchat.engine.api.cache_events import CacheEvent
from kvchat.engine.api.config import EngineInfo
from kvchat.engine.api.engine_phase import EngineStatus
from kvchat.engine.api.events import Event, RequestFinished
from kvchat.engine.api.ids import RequestId, SequenceId
from kvchat.engine.api.inspection import InspectedBlock, InspectionRequest
from kvchat.engine.api.request import Request
from kvchat.engine.api.snapshot import CacheSnapshot

_WAIT_S = 1.0
"""Whoever waits is woken by an event, and by the end of the engine."""


class AnswerHandle(Protocol):
    """An answer on its way, wherever it is written."""

    def cancel(self) -> None:
        """Ask for its end; from any thread."""
        ...

    def prioritise(self, priority: int) -> None:
        """Change how important it is: smaller goes first."""
        ...


class RequestHandle(AnswerHandle, Protocol):
    """A request on its way. It ends with a RequestFinished, also where it is cancelled."""

    @property
    def request_id(self) -> RequestId: ...

    @property
    def sequence(self) -> SequenceId: ...

    def take_events(self, timeout_s: float) -> tuple[Event, ...]:
        """Return what happened since the last call; wait up to `timeout_s` for the first event.

        Raises:
            EngineFailed: the engine died; no further event will come.
        """
        ...


def events_of(handle: RequestHandle) -> Iterator[Event]:
    """Yield the events of a request as they come, to the last.

    Raises:
        KvchatError: why the engine died, mostly EngineFailed; no further event will come.
    """
    while True:
        for event in handle.take_events(_WAIT_S):
            yield event
            if isinstance(event, RequestFinished):
                return


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

    def prioritise_sequence(self, sequence: SequenceId, priority: int) -> None:
        """Change how important a live sequence is while nothing runs on it: of idle sequences the least
        important is evicted first. Unknown ones are ignored. Returns at once.
        """
        ...

    def fork(self, sequence: SequenceId) -> SequenceId: ...

    def release(self, sequence: SequenceId) -> None:
        """Let go of a live sequence; its blocks stay cached. Unknown or released sequences are ignored."""
        ...

    def drain_saves(self) -> None:
        """Wait until nothing that was computed is on its way to the disk."""
        ...

    def reusable_len(self, token_ids: Sequence[int], namespace: str = "") -> int:
        """Return how many tokens of a prompt need not be computed; blocks while the engine loads."""
        ...

    def prefetch(self, token_ids: Sequence[int], *, beside: Sequence[int] = (), namespace: str = "") -> None:
        """Begin to load what is stored of a path to the device, ahead of use; replaces an earlier request,
        and without ids only ends it. Returns at once. `beside`: a path whose blocks are not evicted for it.
        """
        ...

    def cache_events(self, since: int = 0) -> tuple[CacheEvent, ...]:
        """Return the newest events of the cache, from this number on. Waits as `inspect` does."""
        ...

    def inspect(self, request: InspectionRequest) -> tuple[InspectedBlock, ...]:
        """Return the blocks of a path, wherever they are, or those cached for no sequence. Waits while the
        engine loads, and until its step ends.
        """
        ...

    def snapshot(self) -> CacheSnapshot | None:
        """Return the newest snapshot, None before the engine is loaded. Never blocks."""
        ...

    def close(self) -> None:
        """Save tails, stop the thread, free the memory."""
        ...
