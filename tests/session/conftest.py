"""A store of sessions in a directory of its own, and the starter's template."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.platform.encryptor import Encryptor
from kvchat.session.store import SessionStore

plain_and_encrypted = pytest.mark.parametrize(
    "encryptor", [None, Encryptor(bytes(range(32)))], ids=["plain", "encrypted"]
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "sessions.db"


@pytest.fixture
def encryptor() -> Encryptor | None:
    """What the store is encrypted with: nothing, unless a test is marked to run both ways."""
    return None


@pytest.fixture
def store(path: Path, encryptor: Encryptor | None) -> Iterator[SessionStore]:
    store = SessionStore(path, encryptor)
    yield store
    store.close()
