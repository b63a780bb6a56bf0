"""Server thread: the endpoint on a port of the loopback address."""

import socket
from threading import Thread

import uvicorn
from starlette.types import ASGIApp

from kvchat.errors import StorageError

LOOPBACK = "127.0.0.1"
_MOST_CONNECTIONS = 128
_MAX_HEAD_BYTES = 64 * 2**10
_IDLE_CONNECTION_S = 30
_FAREWELL_S = 3


class Server:
    """Listens from the moment it is made; `start` begins to answer. Port 0 lets the system choose one.

    Raises:
        StorageError: the port is taken, or may not be used.
    """

    def __init__(self, app: ASGIApp, port: int = 0) -> None:
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
            http="h11",
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
