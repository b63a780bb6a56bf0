"""Server thread: the endpoint on a port of the loopback address."""

import asyncio
import socket
from functools import partial
from threading import Thread
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvchat.errors import StorageError

HEAD_S = 30.0
LOOPBACK = "127.0.0.1"
_MOST_CONNECTIONS = 128
_MAX_HEAD_BYTES = 64 * 2**10
_IDLE_CONNECTION_S = 30
_FAREWELL_S = 3


class Server:
    """Listens from the moment it is made; `start` begins to answer.

    Args:
        app: what answers.
        port: 0 lets the system choose one.
        head_s: see `Connection`.

    Raises:
        StorageError: the port is taken, or may not be used.
    """

    def __init__(self, app: ASGIApp, port: int = 0, *, head_s: float = HEAD_S) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((LOOPBACK, port))
            self._socket.listen(_MOST_CONNECTIONS)
        except (OSError, OverflowError) as error:
            self._socket.close()
            raise StorageError(f"cannot listen on port {port} ({error}); choose another --port") from error
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=partial(Connection, head_s=head_s),  # type: ignore[arg-type]
            ws="none",
            limit_concurrency=_MOST_CONNECTIONS,
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
            timeout_keep_alive=_IDLE_CONNECTION_S,
            timeout_graceful_shutdown=_FAREWELL_S,
        )
        self._server = uvicorn.Server(config)
        arguments = {"sockets": [self._socket]}
        self._thread = Thread(target=self._server.run, kwargs=arguments, name="kvchat-serve", daemon=True)

    @property
    def url(self) -> str:
        """Where clients find it, as they want their base URL."""
        host, port = self._socket.getsockname()
        return f"http://{host}:{port}/v1"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Let answers end for a moment, cut what is left, and stop listening."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()


class Connection(H11Protocol):
    """HTTP that hangs up on whoever does not get to the end of a request's head, however many bytes come.

    Clients that know no key could otherwise hold all the connections that are allowed.

    Args:
        head_s: in this many seconds after connecting, and after each answer, the next head has to be here.
    """

    def __init__(self, *args: Any, head_s: float = HEAD_S, **values: Any) -> None:
        super().__init__(*args, **values)
        self._head_s = head_s
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering():
            self._await_nothing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_answering():  # the next request may have been here already
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._await_nothing()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._await_nothing()
        self._deadline = self.loop.call_later(self._head_s, self.transport.close)

    def _await_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
