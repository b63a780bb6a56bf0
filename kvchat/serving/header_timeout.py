"""Connection of the endpoint, with a time limit for each request."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 30.0


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
