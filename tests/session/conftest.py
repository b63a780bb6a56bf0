"""A store of sessions in a directory of its own, and the starter's template."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.session.store import SessionStore
from kvchat.session.template.chat_template import ChatTemplate
from tests.tiny_models import STARTER, write_model


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    return ChatTemplate.from_dir(write_model(tmp_path_factory.mktemp("model"), STARTER))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "sessions.db"


@pytest.fixture
def store(path: Path) -> Iterator[SessionStore]:
    store = SessionStore(path)
    yield store
    store.close()
