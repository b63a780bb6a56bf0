"""What no good client sends, and clients that go away: refused or stopped, and the engine goes on."""

import asyncio
import json
import socket

import pytest

from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import EngineFailed, OutOfMemory, PoolExhausted
from kvchat.serving.app import make_app
from kvchat.serving.guard import MAX_BODY_BYTES
from kvchat.session.template.chat_template import ChatTemplate
from tests.patience import PATIENCE_S, wait_until
from tests.scripted_engine import ScriptedEngine
from tests.serving.conftest import KEY, REPLY, Served

pytestmark = [pytest.mark.pure, pytest.mark.long]

ASK = {"model": "kvchat", "messages": [{"role": "user", "content": "Hello"}]}


def still_answers(served: Served) -> bool:
    served.engine.step_s = 0.0
    answer = json.loads(served.ask(json.dumps(ASK)).body)
    return bool(answer["choices"][0]["message"]["content"] == served.reply)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost.evil.example:80"}, 403),
        ({"Host": "127.0.0.1@evil.example"}, 403),
        ({"Host": "127.0.0.1:99999999"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": f"Bearer {KEY}x"}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": "Bearer \xff\xfe"}, 401),
        ({"Host": "localhost:1234", "Origin": "http://localhost:3000"}, 200),
        ({"Host": "[::1]:80"}, 200),
    ],
)
def test_only_this_machine_with_the_key_is_answered(
    headers: dict[str, str], status: int, served: Served
) -> None:
    reply = served.ask(json.dumps(ASK), **headers)
    assert reply.status == status
    assert status == 200 or ("error" in json.loads(reply.body) and not served.engine.requests)
    assert "access-control-allow-origin" not in reply.headers


def body(**changed: object) -> str:
    return json.dumps(ASK | changed)


def said(content: object, role: object = "user") -> str:
    return body(messages=[{"role": role, "content": content}])


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("", None),
        ("{", None),
        ("[" * 100_000, None),
        ("[]", None),
        ("null", None),
        ('"text"', None),
        ("\xff\xfe", None),
        (body(model=5), "model"),
        (body(model=None), "model"),
        (body(messages=[]), "messages"),
        (body(messages="hello"), "messages"),
        (body(messages=[5]), "messages.0"),
        (said(5), "messages.0.content"),
        (said(None), "messages.0.content"),
        (said([{"type": "image_url", "image_url": {"url": "http://x"}}]), "messages.0.content.0.type"),
        (said("\ud800"), "messages.0.content"),
        (said("x", "tool"), "messages.0.role"),
        (said("x", ["user"]), "messages.0.role"),
        (said("x", "assistant"), "messages"),
        (body(messages=ASK["messages"] * 2), "messages.1"),  # type: ignore[operator]
        (body(stream="yes"), "stream"),
        (body(stream_options=5), "stream_options"),
        (body(stop=5), "stop"),
        (body(stop=["a"] * 100), "stop"),
        (body(stop=[None]), "stop.0"),
        (body(tools=[{"type": "function"}]), "tools"),
        (body(logprobs=True), "logprobs"),
        (body(temperature="hot"), None),
        (body(temperature=[1]), None),
        (body(max_tokens=0), None),
        (body(max_tokens=1.5), None),
        (body(max_tokens=True), None),
        (body(seed=-1), None),
        (body(top_p=float("nan")), None),
        (body().replace("}", "", 1), None),
    ],
)
def test_what_cannot_be_taken_is_refused_by_name(text: str, param: str | None, served: Served) -> None:
    reply = served.ask(text.encode("latin-1") if "\xff" in text else text)
    assert reply.status == 400
    error = json.loads(reply.body)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert error["param"] == param
    assert not served.engine.requests


def test_a_body_that_is_too_long_is_not_read_to_its_end(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) as raw:
        raw.sendall(_head(MAX_BODY_BYTES * 100))
        part, sent = b" " * 2**20, 0
        try:
            while sent <= MAX_BODY_BYTES + 10 * len(part):
                raw.sendall(part)
                sent += len(part)
        except OSError:
            pass  # cut off
    assert sent < MAX_BODY_BYTES + 10 * len(part) or not served.engine.requests
    assert still_answers(served)


def test_a_body_that_comes_too_slowly_is_given_up(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) as raw:
        raw.sendall(_head(1000) + b"{")
        assert raw.recv(100).startswith(b"HTTP/1.1 408")
        assert still_answers(served)


def test_many_who_never_finish_a_request_keep_nobody_from_asking(served: Served) -> None:
    slow = [socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) for _ in range(40)]
    for raw in slow:
        raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Never: ")
    assert still_answers(served)
    for raw in slow:
        raw.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_stops_the_model(stream: bool, served: Served) -> None:
    served.engine.held_after = 100
    served.engine.step_s = 0.002
    served.reply = "word " * 400
    data = json.dumps(ASK | {"stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) as raw:
        raw.sendall(_head(len(data)) + data)
        wait_until(lambda: served.engine.handles)
        if stream:
            raw.recv(100)
    handle = served.engine.handles[0]
    wait_until(handle.cancelled.is_set)
    wait_until(lambda: not served.engine.live)
    served.engine.held_after = None
    served.reply = REPLY
    assert still_answers(served)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_left_before_its_answer_began_stops_the_model(
    stream: bool, template: ChatTemplate
) -> None:
    """As one does while a long prompt is encoded: its leaving is known before the first part is sent."""
    engine = ScriptedEngine(lambda prompt: [5] * 1000, max_context=2000)
    engine.held_after = 3
    app = make_app(engine, template, KEY, SamplingParams(max_tokens=500))
    asked = json.dumps(ASK | {"stream": stream}).encode()
    coming = [{"type": "http.request", "body": asked, "more_body": False}]
    headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {KEY}".encode())]
    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.3"},
        "method": "POST",
        "path": "/v1/chat/completions",
        "query_string": b"",
        "headers": headers,
    }

    async def receive() -> dict[str, object]:
        return coming.pop() if coming else {"type": "http.disconnect"}

    async def send(message: object) -> None:
        await asyncio.sleep(0)  # as where what was sent before has to drain

    async def ask() -> bool:
        """Return whether the model was stopped, and not by the end of the loop."""
        await app(scope, receive, send)  # type: ignore[arg-type]
        return engine.handles[0].cancelled.is_set()

    assert asyncio.run(ask())


def test_a_client_that_reads_slowly_holds_up_nobody(served: Served) -> None:
    served.reply = "word " * 300
    data = json.dumps(ASK | {"stream": True}).encode()
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        raw.sendall(_head(len(data)) + data)
        wait_until(lambda: served.engine.handles)
        served.reply = REPLY
        assert still_answers(served)


def test_failures_of_the_engine_are_told(served: Served) -> None:
    served.engine.dies_after = 2
    assert served.ask(json.dumps(ASK)).status == 500
    streamed = served.ask(json.dumps(ASK | {"stream": True})).body.decode()
    assert "sessions are safe" in streamed
    assert "[DONE]" in streamed


def test_an_engine_that_ends_for_want_of_memory_is_told(served: Served) -> None:
    def die() -> None:
        raise OutOfMemory("no memory is left")

    for body in (ASK, ASK | {"stream": True}):
        served.engine.at_token[2] = die
        assert b"no memory is left" in served.ask(json.dumps(body)).body


def test_other_paths_and_methods_are_not_there(served: Served) -> None:
    assert served.ask("", path="/v1/nothing").status == 404
    assert served.ask("", method="GET").status == 405
    assert served.ask("", path="/../../etc/passwd", method="GET").status == 404


def test_health_needs_no_key_and_metrics_do(served: Served) -> None:
    assert json.loads(served.ask("", path="/health", method="GET", Authorization="").body)["status"] == "ok"
    assert served.ask("", path="/metrics", method="GET", Authorization="").status == 401
    served.ask(json.dumps(ASK))
    text = served.ask("", path="/metrics", method="GET").body.decode()
    label = 'model_name="scripted"'
    assert f"vllm:prompt_tokens_total{{{label}}} {len(served.engine.requests[0].token_ids)}\n" in text
    assert f'vllm:request_success_total{{{label},finished_reason="stop"}} 1\n' in text
    assert f'vllm:e2e_request_latency_seconds_bucket{{{label},le="+Inf"}} 1\n' in text


def test_the_port_is_of_this_machine_alone(served: Served) -> None:
    assert served.server.url.startswith("http://127.0.0.1:")
    for other in ("127.0.0.2", _outward_address()):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, served.port), timeout=PATIENCE_S)


def _outward_address() -> str:
    """Return the address under which others could reach this machine; where there is none, another of it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as raw:
        try:
            raw.connect(("192.0.2.1", 9))  # chooses a route and sends nothing
        except OSError:
            return "127.0.0.3"
        return str(raw.getsockname()[0])


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0" * 1000,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 2**20 + b"\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\n\r\n",
        b"GET http://evil.example/health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    ],
    ids=range(9),
)
def test_what_is_no_request_for_this_machine_is_refused(garbage: bytes, served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) as raw:
        try:
            raw.sendall(garbage)
            first = raw.recv(12)
        except OSError:  # cut off in the middle of it
            first = b"HTTP/1.1 4"
    assert first.startswith(b"HTTP/1.1 4"), first
    assert not served.engine.requests
    assert still_answers(served)


def _head(length: int) -> bytes:
    lines = (
        "POST /v1/chat/completions HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {KEY}",
        "Content-Type: application/json",
        f"Content-Length: {length}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def test_memory_that_is_used_up_is_no_fault_of_the_client(served: Served) -> None:
    for error, status in ((PoolExhausted("no block is left"), 503), (EngineFailed("gone"), 500)):

        def refuse(request: object, error: Exception = error) -> object:
            raise error

        served.engine.submit = refuse  # type: ignore[assignment,method-assign]
        assert served.ask(json.dumps(ASK)).status == status
