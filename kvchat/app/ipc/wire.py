"""Wire protocol between engine server and client: one JSON object per line over a socket of the same user.

    borrower                                     lender
    {"v": 1, "identity": "…"}                    {"v": 1} or {"refused": "why"}
    {"id": 1, "call": "submit", "value": …}      {"id": 1, "result": …} or {"id": 1, "error": …}
    {"call": "cancel", "value": …}               nothing
                                                 {"request": 7, "kind": "TokenEmitted", "event": …}

A call with an id is answered, one without is not. Values are the engine's own (`engine/api`), as plain JSON.
"""

import json
import socket
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar

import msgspec

from kvchat import errors
from kvchat.engine.api.events import LoadPlanned, PrefillProgress, RequestFinished, TokenEmitted

VERSION = 4
MAX_LINE_BYTES = 64 * 2**20
"""A prompt of a million tokens takes a tenth of it."""

EVENTS: dict[str, type] = {
    kind.__name__: kind for kind in (LoadPlanned, PrefillProgress, RequestFinished, TokenEmitted)
}

T = TypeVar("T")


class ProtocolError(Exception):
    """What came over the socket is not what this module says."""


class Channel:
    """One end of a connection. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lines = connection.makefile("rb")
        self._sending = Lock()

    def send(self, message: dict[str, object]) -> None:
        """Send a message; waits while the other end does not read.

        Raises:
            OSError: the connection is gone.
        """
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._sending:
            self._socket.sendall(line)

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, None once the other end has closed.

        Raises:
            ProtocolError: it is none.
            OSError: the connection is gone.
        """
        try:
            line = self._lines.readline(MAX_LINE_BYTES)
        except ValueError:  # ended already
            return None
        if not line:
            return None
        try:
            # The standard library's JSON has numbers that are not finite, and halves of characters.
            message = json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError) as error:
            raise ProtocolError("a line that is no JSON") from error
        if not isinstance(message, dict):
            raise ProtocolError("a line that is no message")
        return message

    def end(self) -> None:
        """Close and let go of what was received; for the thread that receives."""
        self.close()
        self._lines.close()

    def close(self) -> None:
        """Close from any thread; whoever receives is woken, and ends the channel."""
        with suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def plain(value: object) -> Any:
    """Return a value as JSON has it."""
    return msgspec.to_builtins(value)


def restored(kind: type[T], data: object) -> T:
    """Return the value of a type that `plain` took apart.

    Raises:
        ProtocolError: it is none of this type.
        InvalidRequest: it is, and refuses its own contents.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"no {getattr(kind, '__name__', kind)}: {error}") from error


def plain_error(error: errors.KvchatError) -> dict[str, object]:
    told: dict[str, object] = {"kind": type(error).__name__, "message": str(error)}
    return told | {"fits_in": error.fits_in} if isinstance(error, errors.PoolExhausted) else told


def restored_error(data: object) -> errors.KvchatError:
    """Return the error that the other end raised; EngineFailed where it is unknown here."""
    if not isinstance(data, dict):
        return errors.EngineFailed("the process that lends its engine failed")
    kind = getattr(errors, str(data.get("kind")), None)
    if kind is errors.PoolExhausted:
        fits_in = data.get("fits_in")
        formats = tuple(map(str, fits_in)) if isinstance(fits_in, list | tuple) else ()
        return errors.PoolExhausted(str(data.get("message")), formats)
    is_known = isinstance(kind, type) and issubclass(kind, errors.KvchatError)
    return (kind if is_known and kind is not None else errors.EngineFailed)(str(data.get("message")))
