"""Stores in a directory of their own, closed behind the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.engine.cache.eviction import Eviction
from kvchat.engine.memory.disk.store import DiskStore
from tests.engine.memory.chains import open_store
from tests.engine.memory.disk.small_disk import Disk, MakeDisk


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DiskStore]:
    store = open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[MakeDisk]:
    """Return a function that makes a disk with room for so many blocks."""
    disks: list[Disk] = []

    def make(num_blocks: int, eviction: Eviction = Eviction.S3FIFO) -> Disk:
        disks.append(Disk(tmp_path, num_blocks, eviction))
        return disks[-1]

    yield make
    for disk in disks:
        disk.store.close()
