"""Engine worker: the thread that owns the engine; requests in, events and snapshots out.

Only immutable values cross to other threads. The module imports no torch; the thread loads it, so that a
window can be drawn and typed into while the model loads. Any exception of the engine becomes EngineFailed for
whoever waits.
"""

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Condition, Lock, Thread, get_native_id
from typing import TYPE_CHECKING, Any, TypeVar

from kvchat.engine.api.cache_events import CacheEvent
from kvchat.engine.api.config import EngineConfig, EngineInfo
from kvchat.engine.api.engine_phase import EnginePhase, EngineStatus
from kvchat.engine.api.event_queue import EventQueue
from kvchat.engine.api.events import Event, RequestFinished
from kvchat.engine.api.ids import RequestId, SequenceId
from kvchat.engine.api.inspection import InspectedBlock, InspectionRequest
from kvchat.engine.api.request import Request
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.errors import EngineFailed, InvalidRequest, KvchatError

if TYPE_CHECKING:
    from kvchat.engine.engine import Engine

SNAPSHOT_INTERVAL_S = 1 / 15
IDLE_WAIT_S = 0.5
LOADING_WAIT_S = 0.01
"""While blocks come ahead of use: how long until those that have landed are named."""
NICENESS = 10
"""More of it has an engine beside a window: what draws gets the processor at once when it wants it."""

log = logging.getLogger(__name__)
T = TypeVar("T")


class WorkerHandle(EventQueue):
    """A request on its way, for threads other than the engine's."""

    def __init__(self, request_id: RequestId, sequence: SequenceId, worker: "Worker") -> None:
        super().__init__(lambda: worker.failure)
        self.request_id = request_id
        self.sequence = sequence
        self._worker = worker

    def cancel(self) -> None:
        self._worker.cancel(self.request_id)

    def prioritise(self, priority: int) -> None:
        self._worker.prioritise(self.request_id, priority)


class Worker:
    """Loads a model in its own thread and serves requests from any thread.

    Whoever waits for an answer waits while the model loads, and gets what the method of `Engine` raises, or
    EngineFailed where there is no engine any more.
    """

    def __init__(
        self, model: str, model_dir: Path, config: EngineConfig, *, steps_aside: bool = False
    ) -> None:
        """Args:
        model: the name to show.
        model_dir: directory with config and weights.
        steps_aside: let the process's other threads have the processor first (on Linux). One that draws holds
            the interpreter's lock, and this one waits for it.
        """
        self._steps_aside = steps_aside
        self._model = model
        self._model_dir = model_dir
        self._config = config
        self._commands: deque[Callable[[Engine], None]] = deque()
        self._changed = Condition()
        self._handles: dict[RequestId, WorkerHandle] = {}
        self._handles_lock = Lock()
        self._status = EngineStatus(phase=EnginePhase.LOADING, detail=f"loading {model}")
        self._info: EngineInfo | None = None
        self._snapshot: CacheSnapshot | None = None
        self._closing = False
        self._thread = Thread(target=self._run, name="kvchat-engine", daemon=True)

    # Any thread

    def start(self) -> None:
        self._thread.start()

    @property
    def failure(self) -> KvchatError | None:
        """Why no event will come any more, or None."""
        status = self._status
        if status.phase is EnginePhase.FAILED:
            return status.error
        return EngineFailed("the engine is closed") if status.phase is EnginePhase.CLOSED else None

    def status(self) -> EngineStatus:
        return self._status

    def info(self) -> EngineInfo:
        """Return what was loaded; waits for it.

        Raises:
            KvchatError: why the model could not be loaded.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._info is not None or self.failure is not None)
        if self._info is None:
            assert self.failure is not None
            raise self.failure
        return self._info

    def submit(self, request: Request) -> WorkerHandle:
        return self._call(lambda engine: self._submit(engine, request))

    def cancel(self, request_id: RequestId) -> None:
        self._post(lambda engine: engine.cancel(request_id))

    def prioritise(self, request_id: RequestId, priority: int) -> None:
        self._post(lambda engine: engine.prioritise(request_id, priority))

    def prioritise_sequence(self, sequence: SequenceId, priority: int) -> None:
        self._post(lambda engine: engine.prioritise_sequence(sequence, priority))

    def fork(self, sequence: SequenceId) -> SequenceId:
        return self._call(lambda engine: engine.fork(sequence))

    def release(self, sequence: SequenceId) -> None:
        """Let go of a sequence; unknown or released ones are ignored."""
        self._post(lambda engine: _release(engine, sequence))

    def drain_saves(self) -> None:
        """Wait until nothing is on its way to the disk; see `Engine.drain_saves`. Not while the model loads:
        nothing is then.
        """
        if self._info is not None and self.failure is None:
            self._call(lambda engine: engine.drain_saves())

    def reusable_len(self, token_ids: Sequence[int], namespace: str = "") -> int:
        return self._call(lambda engine: engine.reusable_len(token_ids, namespace))

    def prefetch(self, token_ids: Sequence[int], *, beside: Sequence[int] = (), namespace: str = "") -> None:
        """Begin to bring what is stored of a path to the device; see `Engine.prefetch`. Nobody waits for it:
        ids that the engine refuses are logged.
        """
        self._post(lambda engine: _prefetch(engine, token_ids, beside, namespace))

    def inspect(self, request: InspectionRequest) -> tuple[InspectedBlock, ...]:
        return self._call(lambda engine: engine.inspect(request))

    def cache_events(self, since: int = 0) -> tuple[CacheEvent, ...]:
        return self._call(lambda engine: engine.cache_events(since))

    def snapshot(self) -> CacheSnapshot | None:
        return self._snapshot

    def close(self) -> None:
        """End requests, save tails, stop the thread. May be called twice.

        Waits for the thread, unless it is still loading: then there is nothing to save.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive() and self._status.phase is not EnginePhase.LOADING:
            self._thread.join()

    # The engine's thread

    def _run(self) -> None:
        if self._steps_aside and sys.platform == "linux":
            # Of this thread, and of those that it begins to compute with.
            with suppress(OSError):  # a sandbox may refuse it
                niceness = os.getpriority(os.PRIO_PROCESS, get_native_id()) + NICENESS
                os.setpriority(os.PRIO_PROCESS, get_native_id(), min(niceness, 19))
        try:
            engine = self._load()
            self._serve(engine)
            engine.close()
            self._dispatch(engine.step())  # the ends of the requests that closing has cancelled
            self._set_status(EngineStatus(phase=EnginePhase.CLOSED))
        except KvchatError as error:
            self._fail(error)
        except BaseException as error:
            log.exception("the engine failed")
            self._fail(EngineFailed(f"the engine failed: {type(error).__name__}: {error}"))

    def _load(self) -> "Engine":
        # Before numpy, whose OpenBLAS ends the process where it finds no memory; torch raises.
        import torch  # noqa: F401

        from kvchat.engine.engine import Engine
        from kvchat.engine.startup.assembly import build_parts

        start_s = time.monotonic()
        engine = Engine(build_parts(self._model, self._model_dir, self._config, self._report))
        log.info("loaded %s in %.1f s", self._model, time.monotonic() - start_s)
        self._snapshot = engine.snapshot()
        with self._changed:
            self._info = engine.info
        self._set_status(EngineStatus(phase=EnginePhase.READY, detail=self._model))
        return engine

    def _report(self, words: str) -> None:
        self._set_status(EngineStatus(phase=EnginePhase.LOADING, detail=f"loading {self._model}: {words}"))

    def _serve(self, engine: "Engine") -> None:
        snapshot_s = 0.0
        while True:
            while self._commands:
                self._commands.popleft()(engine)
            if self._closing:
                return
            self._dispatch(engine.step() if engine.has_work else ())
            now_s = time.monotonic()
            if now_s - snapshot_s >= SNAPSHOT_INTERVAL_S or not engine.has_work:
                snapshot_s = now_s
                self._snapshot = engine.snapshot()
            if not engine.has_work:
                engine.tick()
                timeout_s = LOADING_WAIT_S if engine.is_loading else IDLE_WAIT_S
                with self._changed:
                    self._changed.wait_for(lambda: self._commands or self._closing, timeout_s)

    def _submit(self, engine: "Engine", request: Request) -> WorkerHandle:
        inner = engine.submit(request)
        handle = WorkerHandle(inner.request_id, inner.sequence, self)
        with self._handles_lock:
            self._handles[inner.request_id] = handle
        return handle

    def _dispatch(self, events: tuple[Event, ...]) -> None:
        for event in events:
            with self._handles_lock:
                handle = self._handles.get(event.request_id)
                if isinstance(event, RequestFinished):
                    self._handles.pop(event.request_id, None)
            if handle is not None:
                handle.push(event)

    # Crossing

    def _post(self, command: "Callable[[Engine], None]") -> None:
        with self._changed:
            self._commands.append(command)
            self._changed.notify_all()

    def _call(self, command: "Callable[[Engine], T]") -> T:
        """Run a command on the engine's thread and return its result."""
        if self.failure is not None:
            raise self.failure
        future: Future[T] = Future()
        self._post(lambda engine: _fulfil(future, command, engine))
        while not future.done():
            try:
                return future.result(timeout=IDLE_WAIT_S)
            except TimeoutError:
                if self.failure is not None and not future.done():
                    raise self.failure from None
        return future.result()

    def _set_status(self, status: EngineStatus) -> None:
        with self._changed:
            self._status = status
            self._changed.notify_all()
        with self._handles_lock:
            handles = list(self._handles.values())
        for handle in handles:
            handle.wake()

    def _fail(self, error: KvchatError) -> None:
        self._set_status(EngineStatus(phase=EnginePhase.FAILED, detail=str(error), error=error))


def _release(engine: Any, sequence: SequenceId) -> None:
    try:
        engine.release(sequence)
    except InvalidRequest:
        log.debug("sequence %s was released before", sequence)


def _prefetch(engine: Any, token_ids: Sequence[int], beside: Sequence[int], namespace: str) -> None:
    try:
        engine.prefetch(token_ids, beside, namespace)
    except InvalidRequest as error:
        log.info("nothing is loaded ahead: %s", error)


def _fulfil(future: "Future[T]", command: "Callable[[Engine], T]", engine: Any) -> None:
    """Give a future the command's result, or the error meant for the caller alone."""
    try:
        future.set_result(command(engine))
    except KvchatError as error:
        future.set_exception(error)
