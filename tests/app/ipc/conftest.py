"""A lender over a scripted engine, in a directory short enough for a socket."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kvchat.app.ipc.client import EngineClientProxy, borrow
from kvchat.app.ipc.server import EngineServer
from kvchat.session.template.chat_template import ChatTemplate
from tests.scripted_engine import ScriptedEngine

IDENTITY = "0123456789abcdef"
ANSWER = tuple(range(5, 45))


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the socket lies."""
    with TemporaryDirectory(prefix="kvchat-") as directory:
        yield Path(directory) / "run" / "engine.sock"


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda prompt: ANSWER, max_context=1000)


@pytest.fixture
def lender(engine: ScriptedEngine, template: ChatTemplate, place: Path) -> Iterator[EngineServer]:
    lender = EngineServer(engine, template, place, IDENTITY)
    assert lender.start()
    yield lender
    lender.close()


def lent(place: Path) -> EngineClientProxy:
    """Borrow an engine that has to be there."""
    borrowed = borrow(place, IDENTITY)
    assert borrowed is not None
    return borrowed


@pytest.fixture
def borrowed(lender: EngineServer) -> Iterator[EngineClientProxy]:
    with closing(lent(lender.path)) as borrowed:
        yield borrowed
