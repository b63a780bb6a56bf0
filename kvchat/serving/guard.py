"""Guard of the endpoint: refuses requests by host, origin, key and size before their body is read.

A page in a browser can reach a port of the same machine. It sends its own Origin, or after DNS rebinding a
Host that is not this machine; both are refused.
"""

import asyncio
import hmac
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvchat.serving.replies import refusal

MAX_BODY_BYTES = 32 * 2**20
"""A conversation of some million tokens."""
BODY_S = 30.0
_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
_OPEN_PATHS = frozenset({"/health"})


class Guard:
    """Lets a request through to the application, or answers it. A body has to be here in `body_s` seconds."""

    def __init__(self, app: ASGIApp, key: str, body_s: float = BODY_S) -> None:
        self._app = app
        self._key = key.encode()
        self._body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = self._refusal(scope) or await self._body(scope, receive)
        if isinstance(body, bytes):
            await self._app(scope, _again(body, receive), send)
        elif body is not None:
            await body(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not _is_local("//" + hosts[0].decode("latin-1")):
            return refusal(403, "this endpoint answers under the name of this machine alone", "forbidden")
        if "origin" in headers and not _is_local(headers["origin"].decode("latin-1")):
            return refusal(403, "pages of other origins are not answered", "forbidden")
        if scope["path"] in _OPEN_PATHS:
            return None
        scheme, _, key = headers.get("authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._key):
            return refusal(401, "the API key is missing or another one", "invalid_api_key")
        return None

    async def _body(self, scope: Scope, receive: Receive) -> bytes | Response | None:
        """Read the body, or return why it is refused; None where the client has gone."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > MAX_BODY_BYTES:
                        return refusal(413, f"the body is longer than {MAX_BODY_BYTES} bytes", "too_large")
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            return refusal(408, "the body came too slowly", "timeout")


def _is_local(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port_is_one = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return parts.hostname in _LOCAL and port_is_one and parts.username is None


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read, and then what comes behind it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def give() -> Message:
        return messages.pop() if messages else await receive()

    return give
