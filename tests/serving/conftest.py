"""The endpoint on a real port, over an engine that follows a script."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.serving.app import make_app
from kvchat.serving.server import HEAD_S, Server
from kvchat.session.template.chat_template import ChatTemplate
from tests.patience import PATIENCE_S
from tests.scripted_engine import ScriptedEngine

KEY = "a-key-for-the-tests"
REPLY = "Hello, Grüße! The answer is no."


@dataclass(frozen=True, kw_only=True)
class Reply:
    status: int
    body: bytes
    headers: dict[str, str]


class Served:
    """A running endpoint."""

    def __init__(self, template: ChatTemplate, head_s: float = HEAD_S) -> None:
        self.template = template
        self.reply = REPLY
        self.engine = ScriptedEngine(lambda prompt: self.ids_of(self.reply), max_context=2000)
        app = make_app(self.engine, template, KEY, SamplingParams(max_tokens=500), body_s=1.0)
        self.server = Server(app, head_s=head_s)
        self.port = int(self.server.url.rpartition(":")[2].partition("/")[0])
        self.server.start()

    def ids_of(self, reply: str) -> list[int]:
        return [*self.template.tokenizer.encode(reply), min(self.template.end_ids)]

    def ask(
        self, body: bytes | str, path: str = "/v1/chat/completions", method: str = "POST", **headers: str
    ) -> Reply:
        """Send one request; `headers` come over the usual ones, those without a value are left out."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        given = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"} | headers
        data = body.encode() if isinstance(body, str) else body
        with closing(connection):
            connection.putrequest(method, path, skip_host="Host" in given)
            for name, value in given.items():
                if value:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            response = connection.getresponse()
            return Reply(status=response.status, body=response.read(), headers=dict(response.getheaders()))


@pytest.fixture
def served(template: ChatTemplate) -> Iterator[Served]:
    served = Served(template)
    yield served
    served.server.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"
