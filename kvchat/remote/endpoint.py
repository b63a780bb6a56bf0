"""Client of an OpenAI-compatible server: its models, and one streamed answer. Standard library only."""

import codecs
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Timer
from typing import Any
from urllib.parse import urlsplit

from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import ConfigError, InvalidRequest, ModelNotFound, RemoteError, UsageError
from kvchat.session.template.chat_template import Message
from kvchat.session.template.text_stream import Piece

_CONNECT_S = 10.0
_API = "/v1"
_REFUSED = frozenset({400, 413, 422})
_MOST_LINE_BYTES = 1 << 20
_MOST_ERROR_BYTES = 1 << 16
_MOST_LIST_BYTES = 1 << 24
_MOST_METRICS_BYTES = 1 << 22
_METRICS_S = 5.0
_MOST_TOKENS = 1 << 53

_NO_ANSWER = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading JSON of any shape can raise."""

_UNITS = codecs.lookup("utf-16-le")
"""Joins halves of a character that a server cut in two, as JSON writes those beyond the first 65,536; a half
alone becomes U+FFFD, since neither a database nor a terminal takes it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a server says at the end, as far as it does; None: it does not.

    `finish_reason` is `stop` or `length`, or a word of its own.
    """

    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


class RemoteServer:
    """A server, by the URL of its API with or without `/v1`; `key` is sent with every request.

    Raises:
        UsageError: this is no URL of a server.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"--remote takes the URL of a server, such as http://127.0.0.1:8000/v1, not {url!r}"
            )
        if parts.username or parts.password:
            raise UsageError(
                "a URL with a password in it would be stored; put the key into --remote-key-file"
            )
        path = parts.path.rstrip("/")
        self._path = path if path.endswith(_API) else path + _API
        self._is_secure = parts.scheme == "https"
        self._host = parts.hostname
        try:
            self._port = parts.port
        except ValueError as error:
            raise UsageError(f"the port of {url!r} is none") from error
        self._key = key
        self.name = parts.netloc
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"

    def models(self) -> tuple[str, ...]:
        """Return the names of the server's models. Waits for it, 10 seconds at most.

        Raises: see `_request`.
        """
        connection = self._connected()
        try:
            data = self._request(connection, "GET", "/models").read(_MOST_LIST_BYTES + 1)
            if len(data) > _MOST_LIST_BYTES:
                raise ValueError(f"more than {_MOST_LIST_BYTES >> 20} MiB")
            return tuple(str(one["id"]) for one in json.loads(data)["data"])
        except (*_NO_ANSWER, OSError, HTTPException) as error:
            raise RemoteError(f"{self.url}/models did not say which models there are ({error})") from error
        finally:
            connection.close()

    def metrics(self, limit_s: float = _METRICS_S) -> str:
        """Return what the server tells of itself, in Prometheus' text format.

        Raises: RemoteError: it tells nothing, too much, or not all of it within `limit_s`.
        """
        connection = self._connected()
        answer = RemoteStream(self.url, connection)
        deadline = Timer(limit_s, answer.cancel)
        deadline.daemon = True
        deadline.start()
        try:
            connection.request("GET", self._path.removesuffix(_API) + "/metrics", headers=self._headers())
            response = connection.getresponse()
            data = response.read(_MOST_METRICS_BYTES + 1)
        except (OSError, HTTPException, ValueError) as error:
            problem = (
                "took too long" if answer.is_cancelled else f"broke off ({error or type(error).__name__})"
            )
            raise RemoteError(f"{self.name}/metrics {problem}") from error
        finally:
            deadline.cancel()
            connection.close()
        if answer.is_cancelled:  # what was cut off may look whole
            raise RemoteError(f"{self.name}/metrics took too long")
        if response.status != 200:
            raise RemoteError(
                f"{self.name}/metrics answered {response.status}; some servers tell them only when they are"
                " started so"
            )
        if len(data) > _MOST_METRICS_BYTES:
            raise RemoteError(f"{self.name}/metrics is too long")
        if response.length:  # `read` with a limit does not raise where less came than was promised
            raise RemoteError(f"{self.name}/metrics broke off")
        return data.decode(errors="replace")

    def ask(
        self,
        model: str,
        messages: Sequence[Message],
        sampling: SamplingParams,
        watch: Callable[["RemoteStream"], None] = lambda _: None,
    ) -> "RemoteStream":
        """Send a conversation and return its answer on its way.

        Args:
            watch: is given the answer before anything is sent, since a server may read a long prompt before
                it says a word. One that is cancelled by then, or while that is waited for, is empty.

        Raises: see `_request`.
        """
        body = {
            "model": model,
            "messages": [{"role": one.role, "content": one.content} for one in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            **_sampling_fields(sampling),
        }
        connection = self._connected()
        stream = RemoteStream(self.url, connection)
        try:
            watch(stream)
            stream.response = self._request(connection, "POST", "/chat/completions", body)
        except BaseException as error:
            connection.close()
            if not (stream.is_cancelled and isinstance(error, RemoteError)):
                raise
        return stream

    def _connected(self) -> HTTPConnection:
        kind = HTTPSConnection if self._is_secure else HTTPConnection
        connection = kind(self._host, self._port, timeout=_CONNECT_S)
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:
            raise RemoteError(
                f"nobody answers at {self.url} ({error}); start the server, or look at --remote"
            ) from error
        return connection

    def _request(
        self, connection: HTTPConnection, method: str, path: str, body: object | None = None
    ) -> HTTPResponse:
        """Send a request and return the head of what comes.

        Raises:
            RemoteError: it cannot be reached, or answers with an error.
            InvalidRequest: it does not take the request.
            ModelNotFound: it has no such model.
            ConfigError: it wants another key.
        """
        headers = {"Accept": "application/json, text/event-stream"} | self._headers()
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
            assert connection.sock is not None
            connection.sock.settimeout(None)  # a long prompt takes its time; the person can stop it
        try:
            connection.request(method, self._path + path, data, headers)
            response = connection.getresponse()
            if response.status >= 300:
                raise self._refusal(response)
        except (OSError, HTTPException) as error:
            raise RemoteError(f"{self.url} broke off ({error or type(error).__name__})") from error
        return response

    def _headers(self) -> dict[str, str]:
        return {} if self._key is None else {"Authorization": f"Bearer {self._key}"}

    def _refusal(self, response: HTTPResponse) -> Exception:
        said = f"{self.url} answered {response.status}: {_error_words(response.read(_MOST_ERROR_BYTES))}"
        if response.status in (401, 403):
            return ConfigError(f"{said}; give the file of the server's key with --remote-key-file")
        if response.status == 404:
            return ModelNotFound(f"{said}; name a model that it has with -m, and look at --remote")
        return (InvalidRequest if response.status in _REFUSED else RemoteError)(said)


class RemoteStream:
    """One answer on its way. Iterating it belongs to one thread; `cancel` may be called from any."""

    def __init__(self, url: str, connection: HTTPConnection) -> None:
        self.report = Report()
        """Grows until the stream has ended."""
        self.is_cancelled = False
        self.response: HTTPResponse | None = None
        """None until the server has begun to answer."""
        self._url = url
        self._connection = connection
        self._socket = connection.sock

    def cancel(self) -> None:
        """End it: the server sees a closed connection."""
        self.is_cancelled = True
        with suppress(OSError):  # it has ended already
            if self._socket is not None:
                # Not `ssl`'s own, after which a request that is being sent would go on in the clear.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def prioritise(self, priority: int) -> None:
        """Nothing: a server knows no priorities of ours."""

    def __iter__(self) -> Iterator[Piece]:
        """Yield the text as it comes.

        Raises: RemoteError: the server reported an error, broke off, or sent what is no answer.
        """
        try:
            said, thought = _UNITS.incrementaldecoder("replace"), _UNITS.incrementaldecoder("replace")
            for event in self._events():
                for delta in self._deltas(event):
                    units = delta.text.encode(_UNITS.name, "surrogatepass")
                    if text := (thought if delta.reasoning else said).decode(units):
                        yield replace(delta, text=text)
            for decoder, reasoning in ((thought, True), (said, False)):
                if text := decoder.decode(b"", final=True):
                    yield Piece(text=text, reasoning=reasoning)
            if self.report.finish_reason is None and not self.is_cancelled:
                raise RemoteError(f"{self._url} broke off in the middle of the answer")
        except (OSError, HTTPException, *_NO_ANSWER) as error:
            if not self.is_cancelled:
                raise RemoteError(f"{self._url} broke off ({error or type(error).__name__})") from error
        finally:
            self._connection.close()

    def _events(self) -> Iterator[dict[str, Any]]:
        if self.response is None:  # cancelled before the server said a word
            return
        while line := self.response.readline(_MOST_LINE_BYTES):
            name, _, data = line.decode().partition(":")
            if name == "data" and data.strip() == "[DONE]":
                return
            if name == "data" and data.strip():
                yield json.loads(data)

    def _deltas(self, event: dict[str, Any]) -> Iterator[Piece]:
        if "error" in event:
            raise RemoteError(f"{self._url}: {_error_words(json.dumps(event).encode())}")
        if usage := event.get("usage"):
            self.report = _with_usage(self.report, usage)
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            reasoning = delta.get("reasoning_content") or delta.get("reasoning")
            if isinstance(reasoning, str):
                yield Piece(text=reasoning, reasoning=True)
            if isinstance(content := delta.get("content"), str) and content:
                yield Piece(text=content)
            if reason := choice.get("finish_reason"):
                self.report = replace(self.report, finish_reason=str(reason))


def _sampling_fields(sampling: SamplingParams) -> dict[str, object]:
    """Return what differs from a server's defaults, under OpenAI's names, and vLLM's where it has none."""
    fields: dict[str, object] = {"temperature": sampling.temperature}
    if sampling.max_tokens is not None:
        fields["max_tokens"] = sampling.max_tokens
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    plain = SamplingParams()
    for name in ("top_p", "top_k", "min_p", "repetition_penalty"):
        if (value := getattr(sampling, name)) != getattr(plain, name):
            fields[name] = value
    return fields


def _with_usage(report: Report, usage: dict[str, Any]) -> Report:
    details = usage.get("prompt_tokens_details") or {}
    return replace(
        report,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(details.get("cached_tokens")),
    )


def _count(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < _MOST_TOKENS else None


def _error_words(data: bytes) -> str:
    """Return what an error's body says, in one line."""
    text = data.decode(errors="replace")
    try:
        found = json.loads(text)
        said = found.get("error", found.get("detail", found))
        text = said.get("message", said) if isinstance(said, dict) else said
    except _NO_ANSWER:
        pass
    return " ".join(str(text).split())[:500] or "nothing"
