"""Stores, which are closed behind the test."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.store import DiskStore
from tests.engine.memory.chains import OPENED, open_store
from tests.engine.memory.disk.small_disk import Disk, MakeDisk


@pytest.fixture(autouse=True)
def no_store_stays_open() -> Iterator[None]:
    yield
    for store in list(OPENED):
        store.close()


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return open_store(tmp_path)


@pytest.fixture
def make_disk(tmp_path: Path) -> MakeDisk:
    """Return a function that makes a disk with room for so many blocks."""
    return partial(Disk, tmp_path)
