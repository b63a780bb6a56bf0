"""An engine of another process of the same user, used as if it were one's own."""

import logging
import socket
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn, TypeVar

from kvchat.app.ipc.socket_path import is_own_user, is_private, sockets
from kvchat.app.ipc.wire import EVENTS, VERSION, Channel, ProtocolError, plain, restored, restored_error
from kvchat.engine.api.cache_events import CacheEvent
from kvchat.engine.api.config import EngineInfo
from kvchat.engine.api.engine_phase import EnginePhase, EngineStatus
from kvchat.engine.api.event_queue import EventQueue
from kvchat.engine.api.events import Event, RequestFinished
from kvchat.engine.api.ids import RequestId, SequenceId
from kvchat.engine.api.inspection import InspectedBlock, InspectionRequest
from kvchat.engine.api.request import Request
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.errors import EngineFailed, InvalidRequest, KvchatError
from kvchat.session.template.text_stream import StopStrings

_GREETING_S = 10.0
"""A lender that does not answer in this time is as good as none; one that loads a model takes seconds."""
_DRAIN_S = 15.0
"""More than an engine that runs takes to bring to disk, or to drop, what is on its way there."""
_SILENT = "the process that lent its engine does not answer"
_GONE = "the process that lent its engine has ended; what was said is stored, ask again to go on"

_OTHER = (
    "the process that lends its engine is of another kvchat: close that one, or load the model here"
    " with --no-attach"
)

T = TypeVar("T")

log = logging.getLogger(__name__)


def borrow(path: Path, identity: str) -> "EngineClientProxy | None":
    """Return the engine that is lent at a socket; None where there is none, or it is another one."""
    if not is_private(path.parent):
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel = Channel(connection)
    try:
        connection.settimeout(_GREETING_S)
        connection.connect(str(path))
        if not is_own_user(connection):
            raise ProtocolError("another user")
        channel.send({"v": VERSION, "identity": identity})
        greeting = channel.receive()
        if greeting is None or greeting.get("v") != VERSION:
            raise ProtocolError(f"refused: {greeting}")
        connection.settimeout(None)
    except (OSError, ProtocolError) as error:
        log.info("no engine is borrowed at %s: %s", path, error)
        channel.end()
        return None
    return EngineClientProxy(channel)


def borrow_any(runtime_dir: Path) -> "EngineClientProxy | None":
    """Return an engine that a process of this user lends, whatever it computes with; None: nobody does."""
    lent = (borrow(path, path.stem) for path in sockets(runtime_dir))
    return next(filter(None, lent), None)


class IpcHandle(EventQueue):
    """A request on its way in another process."""

    def __init__(self, request_id: RequestId, sequence: SequenceId, engine: "EngineClientProxy") -> None:
        super().__init__(lambda: EngineFailed(_GONE) if engine.is_gone else None)
        self.request_id = request_id
        self.sequence = sequence
        self._engine = engine

    def cancel(self) -> None:
        self._engine.tell("cancel", request=self.request_id)

    def prioritise(self, priority: int) -> None:
        """Change nothing: whoever sits before the lender's screen goes first, whatever is asked for here."""


class EngineClientProxy:
    """The engine at the other end of a channel. Implements `EngineClient`; any thread may call."""

    def __init__(self, channel: Channel, drain_s: float = _DRAIN_S) -> None:
        """Args:
        drain_s: how long to wait for a drain: a lender may have been stopped.
        """
        self.is_gone = False
        """No answer and no event will come any more."""
        self._channel = channel
        self._drain_s = drain_s
        self._ids = count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._handles: dict[int, IpcHandle] = {}
        self._info: EngineInfo | None = None
        self._reader = Thread(target=self._read, name="kvchat-borrower", daemon=True)
        self._reader.start()

    def status(self) -> EngineStatus:
        try:
            answer = self._ask("status")
        except EngineFailed as error:
            return EngineStatus(phase=EnginePhase.FAILED, detail=str(error), error=error)
        reason = restored_error(answer["error"]) if answer.get("error") else None
        return EngineStatus(phase=EnginePhase(answer["phase"]), detail=answer["detail"], error=reason)

    def info(self) -> EngineInfo:
        if self._info is None:
            self._info = _understood(EngineInfo, self._ask("info"))
        return self._info

    def submit(self, request: Request) -> IpcHandle:
        value = plain(replace(request, stop=None))
        # A matcher cannot be sent; the lender makes the same one from where the answer begins.
        prompt_len = request.stop.prompt_len if isinstance(request.stop, StopStrings) else None
        handle = self._ask("submit", request=value, prompt_len=prompt_len)
        assert isinstance(handle, IpcHandle)
        return handle

    def prioritise_sequence(self, sequence: SequenceId, priority: int) -> None:
        """Change nothing, as for a request."""

    def fork(self, sequence: SequenceId) -> NoReturn:
        raise InvalidRequest("a borrowed engine answers, and forks nothing")

    def release(self, sequence: SequenceId) -> None:
        self.tell("release", sequence=sequence)

    def drain_saves(self) -> None:
        self._ask("drain_saves", self._drain_s)

    def reusable_len(self, token_ids: Sequence[int], namespace: str = "") -> int:
        return int(self._ask("reusable_len", token_ids=list(token_ids), namespace=namespace))

    def prefetch(self, token_ids: Sequence[int], *, beside: Sequence[int] = (), namespace: str = "") -> None:
        """Begin nothing: whoever lends loads ahead for the conversation on its own screen."""

    def cache_events(self, since: int = 0) -> tuple[CacheEvent, ...]:
        return tuple(_understood(CacheEvent, event) for event in self._ask("cache_events", since=since))

    def inspect(self, request: InspectionRequest) -> tuple[InspectedBlock, ...]:
        """Show nothing: whoever lends has the window that looks into its cache."""
        return ()

    def snapshot(self) -> CacheSnapshot | None:
        try:
            answer = self._ask("snapshot")
            return None if answer is None else _understood(CacheSnapshot, answer)
        except EngineFailed:
            return None

    def close(self) -> None:
        """Give the engine back; requests that still run are cancelled there."""
        self._channel.close()
        self._reader.join()

    def tell(self, call: str, **value: object) -> None:
        """Send a call that nobody waits for."""
        if not self.is_gone:
            try:
                self._channel.send({"call": call, "value": value})
            except OSError:
                self._fail()

    def _ask(self, call: str, patience_s: float | None = None, **value: object) -> Any:
        """Send a call and wait for its answer.

        Raises:
            KvchatError: as the engine raised it; EngineFailed where the other process is gone, or silent for
                so long.
        """
        number = next(self._ids)
        future: Future[Any] = Future()
        self._waiting[number] = future
        try:
            self._channel.send({"id": number, "call": call, "value": value})
        except OSError:
            self._fail()
        if self.is_gone and not future.done():
            raise EngineFailed(_GONE)
        try:
            return future.result(patience_s)
        except TimeoutError as error:
            self._waiting.pop(number, None)
            raise EngineFailed(_SILENT) from error

    # The reader's thread

    def _read(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                self._take(message)
        except (OSError, ProtocolError, KvchatError) as error:
            log.info("the borrowed engine is gone: %s", error)
        self._channel.end()
        self._fail()

    def _take(self, message: dict[str, Any]) -> None:
        if "event" in message:
            handle = self._handles.get(message.get("request", -1))
            kind = EVENTS.get(message.get("kind", ""))
            if handle is not None and kind is not None:
                event: Event = restored(kind, message["event"])
                if isinstance(event, RequestFinished):
                    self._handles.pop(handle.request_id)
                handle.push(event)
            return
        future = self._waiting.pop(message.get("id", -1), None)
        if future is None:
            return
        if "error" in message:
            future.set_exception(restored_error(message["error"]))
            return
        result = message.get("result")
        if isinstance(result, dict) and "request" in result:
            # Before anybody can ask for it: its first events may be on the next line.
            number = RequestId(int(result["request"]))
            result = IpcHandle(number, SequenceId(int(result["sequence"])), self)
            self._handles[number] = result
        future.set_result(result)

    def _fail(self) -> None:
        self.is_gone = True
        # The reader and whoever sends may both find out; each takes what the other has not.
        for number in list(self._waiting):
            future = self._waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_exception(EngineFailed(_GONE))
        for handle in list(self._handles.values()):
            handle.wake()


def _understood(kind: type[T], data: object) -> T:
    """Return the value that a lender sent.

    Raises:
        EngineFailed: it is none, as from a kvchat whose values are others.
    """
    try:
        return restored(kind, data)
    except ProtocolError as error:
        raise EngineFailed(_OTHER) from error
