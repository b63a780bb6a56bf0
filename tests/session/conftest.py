"""A store of sessions in a directory of its own, and the starter's template."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.session.store import SessionStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "sessions.db"


@pytest.fixture
def store(path: Path) -> Iterator[SessionStore]:
    store = SessionStore(path)
    yield store
    store.close()
