"""Lends an engine to other processes of the same user, through a socket.

A thread per connection, and one per request that runs for it. Whatever a borrower does, also to vanish in the
middle of a word, costs it its own requests and nobody else anything.
"""

import fcntl
import logging
import os
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock, Thread
from time import monotonic
from typing import Any

from kvchat.app.ipc.socket_path import is_own_user, make_room
from kvchat.app.ipc.wire import VERSION, Channel, ProtocolError, plain, plain_error, restored
from kvchat.chat.conversation import BEHIND
from kvchat.chat.engine_client import EngineClient, RequestHandle, events_of
from kvchat.engine.api.events import Event
from kvchat.engine.api.ids import RequestId, SequenceId
from kvchat.engine.api.request import Request
from kvchat.errors import InvalidRequest, KvchatError
from kvchat.session.template.chat_template import ChatTemplate

_MAX_BORROWERS = 128
_GREETING_S = 10.0

log = logging.getLogger(__name__)


class EngineServer:
    """Listens at a socket until it is closed.

    Args:
        engine: what is lent; the lender never closes it.
        template: the model's, for the stop strings of requests.
        path: where the socket lies; see `socket_path`.
        identity: what a borrower must have asked for.
    """

    def __init__(self, engine: EngineClient, template: ChatTemplate, path: Path, identity: str) -> None:
        self.path = path
        self._engine = engine
        self._template = template
        self._identity = identity
        self._guard = Lock()
        self._connections: set[ClientConnection] = set()
        self._idle_since_s = monotonic()
        self._socket: socket.socket | None = None
        self._lock: int | None = None

    def start(self) -> bool:
        """Begin to listen; False where another process lends such an engine already.

        Raises:
            StorageError: the socket's directory cannot be made, or is not this user's alone.
        """
        make_room(self.path)
        self._lock = _locked(self.path.with_suffix(".lock"))
        if self._lock is None:
            return False
        # Whoever holds the lock owns the name: a socket that lies here is a dead process's.
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self.path))
        self.path.chmod(0o600)
        self._socket.listen(_MAX_BORROWERS)
        Thread(target=self._accept, args=(self._socket,), name="kvchat-lender", daemon=True).start()
        return True

    @property
    def idle_s(self) -> float:
        """Seconds for which nobody has borrowed; 0 while somebody does."""
        with self._guard:
            return 0.0 if self._connections else monotonic() - self._idle_since_s

    def close(self) -> None:
        """Stop listening and cut the connections; their requests are cancelled."""
        if self._socket is None or self._lock is None:
            return
        with suppress(OSError):
            self.path.unlink()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        os.close(self._lock)
        self._socket = self._lock = None
        with self._guard:
            connections = tuple(self._connections)
        for connection in connections:
            connection.cut()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, _ = listening.accept()
            except OSError:
                return
            with self._guard:
                is_full = len(self._connections) >= _MAX_BORROWERS
            if is_full or not is_own_user(accepted):
                accepted.close()
                continue
            connection = ClientConnection(accepted, self._engine, self._template, self._identity)
            with self._guard:
                self._connections.add(connection)
            Thread(target=self._serve, args=(connection,), name="kvchat-lent", daemon=True).start()

    def _serve(self, connection: "ClientConnection") -> None:
        try:
            connection.serve()
        finally:
            with self._guard:
                self._connections.discard(connection)
                self._idle_since_s = monotonic()


class ClientConnection:
    """One borrower: what it asks for, and what it holds of the engine."""

    def __init__(
        self, connection: socket.socket, engine: EngineClient, template: ChatTemplate, identity: str
    ) -> None:
        self._socket = connection
        self._channel = Channel(connection)
        self._engine = engine
        self._template = template
        self._identity = identity
        self._guard = Lock()
        self._running: dict[RequestId, RequestHandle] = {}
        self._new: list[RequestHandle] = []
        self._sequences: set[SequenceId] = set()
        self._is_over = False

    def serve(self) -> None:
        """Answer calls until the borrower is gone; then cancel and release all that it held."""
        try:
            if self._greeted():
                while (message := self._channel.receive()) is not None:
                    self._answer(message)
        except (OSError, ProtocolError) as error:
            log.info("a borrower was cut off: %s", error)
        except Exception:
            log.exception("a borrower's call failed")
        finally:
            self._end()

    def cut(self) -> None:
        """End the connection, from any thread."""
        self._channel.close()

    def _greeted(self) -> bool:
        self._socket.settimeout(_GREETING_S)
        greeting = self._channel.receive() or {}
        self._socket.settimeout(None)
        if greeting.get("v") != VERSION or greeting.get("identity") != self._identity:
            self._channel.send({"refused": "another version or another model is lent here"})
            return False
        self._channel.send({"v": VERSION})
        return True

    def _end(self) -> None:
        self._channel.end()
        with self._guard:
            self._is_over = True
            running = tuple(self._running.values())
            # The sequence of a request that runs is released when it has ended.
            idle = self._sequences.difference(handle.sequence for handle in running)
        for handle in running:
            handle.cancel()
        for sequence in idle:
            self._engine.release(sequence)

    def _answer(self, message: dict[str, Any]) -> None:
        value = message.get("value")
        if not isinstance(value, dict):
            raise ProtocolError("a call without values")
        try:
            try:
                answer: dict[str, object] = {"result": self._called(message.get("call"), value)}
            except (KeyError, TypeError) as error:
                raise ProtocolError(f"no value of {message['call']}") from error
        except KvchatError as error:
            answer = {"error": plain_error(error)}
        try:
            if "id" in message:
                self._channel.send({"id": message["id"]} | answer)
        finally:
            # Events of a new request flow behind the answer that names it, never before.
            while self._new:
                arguments = (self._new.pop(),)
                Thread(target=self._pump, args=arguments, name="kvchat-lent-answer", daemon=True).start()

    def _called(self, call: object, value: dict[str, Any]) -> object:
        """Do what a borrower asks for, and return what it is told."""
        match call:
            case "status":
                status = self._engine.status()
                error = None if status.error is None else plain_error(status.error)
                return {"phase": status.phase.value, "detail": status.detail, "error": error}
            case "info":
                return plain(self._engine.info())
            case "snapshot":
                return plain(self._engine.snapshot())
            case "cache_events":
                return [plain(event) for event in self._engine.cache_events(int(value["since"]))]
            case "reusable_len":
                return self._engine.reusable_len(tuple(value["token_ids"]), str(value["namespace"]))
            case "submit":
                return self._submit(value)
            case "cancel":
                if handle := self._running.get(value["request"]):
                    handle.cancel()
            case "release":
                if (sequence := value["sequence"]) in self._sequences:
                    self._sequences.discard(sequence)
                    self._engine.release(sequence)
            case "drain_saves":
                self._engine.drain_saves()
            case _:
                raise ProtocolError(f"no call: {call!r}")
        return None

    def _submit(self, value: dict[str, Any]) -> object:
        request = restored(Request, value["request"])
        if request.sequence is not None and request.sequence not in self._sequences:
            raise InvalidRequest("this sequence belongs to somebody else, or is gone")
        if (prompt_len := value["prompt_len"]) is not None:
            ids = request.token_ids
            stop = self._template.stop_matcher(ids[:prompt_len], ids[prompt_len:])
            request = replace(request, stop=stop)
        # Whoever sits before the lender's screen goes first.
        request = replace(request, priority=max(request.priority, BEHIND))
        handle = self._engine.submit(request)
        with self._guard:
            self._running[handle.request_id] = handle
            self._sequences.add(handle.sequence)
        self._new.append(handle)
        return {"request": handle.request_id, "sequence": handle.sequence}

    # The thread of a request

    def _pump(self, handle: RequestHandle) -> None:
        """Pass on events until the last, also where nobody takes them any more."""
        try:
            for event in events_of(handle):
                self._pass_on(handle, event)
        except KvchatError:
            self.cut()
        with self._guard:
            self._running.pop(handle.request_id, None)
            is_over = self._is_over
        if is_over:
            with suppress(KvchatError):
                self._engine.release(handle.sequence)

    def _pass_on(self, handle: RequestHandle, event: Event) -> None:
        if self._is_over:
            return
        try:
            message = {"request": handle.request_id, "kind": type(event).__name__, "event": plain(event)}
            self._channel.send(message)
        except OSError:
            handle.cancel()


def _locked(file: Path) -> int | None:
    """Return the descriptor of a lock file that is held from now on; None where another process holds it."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
