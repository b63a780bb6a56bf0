"""Servers to talk to: kvchat's own endpoint over a scripted engine, and one that says what a test wants."""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Event, Thread
from time import sleep

import pytest

from kvchat.remote.chat_service import RemoteChat
from kvchat.remote.endpoint import RemoteServer
from kvchat.session.store import SessionStore
from tests.serving import conftest as serving
from tests.serving.conftest import KEY, Served

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


class RawServer:
    """Answers every connection with the same bytes, and then ends it, or keeps it open until it is closed;
    `drops` are sent again and again meanwhile.
    """

    def __init__(self, data: bytes, *, hangs: bool = False, drops: bytes = b"") -> None:
        self.gone = Event()
        """The client has closed a connection that was kept open."""
        self.asked = Event()
        """A request has come whole."""
        self.requests: list[bytes] = []
        self._data = data
        self._hangs = hangs
        self._drops = drops
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Refuse connections from now on: a thread that still accepts would take one more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self.requests.append(_request(connection))
            self.asked.set()
            connection.sendall(self._data)
            while self._drops:
                sleep(0.02)
                connection.sendall(self._drops)
            if self._hangs:
                connection.recv(1)
        if self._hangs:
            self.gone.set()


def _request(connection: socket.socket) -> bytes:
    """Return the body of a request that has come whole."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _received(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    while length is not None and len(body) < int(length[1]):
        body += _received(connection)
    return body


def _received(connection: socket.socket) -> bytes:
    """Return what has come; a client that has gone will send no more."""
    data = connection.recv(65536)
    if not data:
        raise ConnectionError
    return data


@pytest.fixture
def raw() -> Iterator[Callable[..., RawServer]]:
    servers: list[RawServer] = []

    def make(data: bytes, *, hangs: bool = False, drops: bytes = b"") -> RawServer:
        servers.append(RawServer(data, hangs=hangs, drops=drops))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


served = serving.served


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    with closing(SessionStore(tmp_path / "sessions.db")) as store:
        yield store


@pytest.fixture
def chat(store: SessionStore, served: Served) -> RemoteChat:
    return RemoteChat(store=store, endpoint=RemoteServer(served.server.url, KEY), model="scripted")
