"""A store in a directory of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.store import DiskStore
from tests.engine.memory.chains import open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DiskStore]:
    store = open_store(tmp_path)
    yield store
    store.close()
