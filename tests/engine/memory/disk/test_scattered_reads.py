"""Blocks read straight into a pool are those that are read in one run, and are trusted no sooner."""

import ctypes
from pathlib import Path

import pytest

from kvchat.engine.kernels.read_block.native import ReadTargets
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import BlockDamaged, BlockMissing
from kvchat.platform.encryptor import Encryptor
from tests.damage import flipped
from tests.engine.memory.chains import FULL, LAYOUTS, chain, open_store, path_of, write_all
from tests.engine.memory.disk.failing_files import FailingFiles

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("native_kernels")]

BLOCK, OTHER = chain([1, 2, 3, 4, 5, 6, 7, 8])
NUM_BYTES = sum(region.nbytes for region in LAYOUTS[FULL])


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    store = open_store(tmp_path)
    write_all(store, [BLOCK, OTHER])
    return store


class Target:
    """A pool of one block and one layer, its keys and values apart."""

    def __init__(self) -> None:
        half = NUM_BYTES // 2
        self._halves = [(ctypes.c_char * half)(), (ctypes.c_char * (NUM_BYTES - half))()]
        addresses = [ctypes.addressof(part) for part in self._halves]
        self.places = ReadTargets(
            starts=(addresses[0], addresses[1]), strides=(0, 0), sizes=(half, NUM_BYTES - half), num_layers=1
        )

    @property
    def content(self) -> bytes:
        return b"".join(part.raw for part in self._halves)


def test_a_block_comes_as_it_was_written(store: DiskStore) -> None:
    target = Target()
    for block in (BLOCK, OTHER):
        assert store.scatter(block.header, target.places)
        assert target.content == block.payload


def test_a_damaged_file_is_set_aside_and_both_ways_say_the_same_of_it(
    store: DiskStore, tmp_path: Path
) -> None:
    path, target = path_of(tmp_path, BLOCK), Target()
    data = path.read_bytes()
    cases = [
        *(flipped(data, at, 4) for at in range(0, len(data), 37)),
        *(data[:length] for length in (0, 7, len(data) - 1)),
        data + b"x",
    ]
    for case in cases:
        said = []
        for read in (
            lambda: store.scatter(BLOCK.header, target.places),
            lambda: store.read_into(BLOCK.header, memoryview(bytearray(NUM_BYTES))),
        ):
            path.write_bytes(case)
            with pytest.raises(BlockDamaged) as caught:
                read()
            said.append(str(caught.value))
            assert not path.exists()
            assert not store.has(BLOCK.key, FULL)
        assert said[0] == said[1]


def test_a_file_that_is_gone_or_a_link_is_not_read(store: DiskStore, tmp_path: Path) -> None:
    path, target = path_of(tmp_path, BLOCK), Target()
    aside = path.rename(tmp_path / "aside")
    with pytest.raises(BlockMissing):
        store.scatter(BLOCK.header, target.places)
    path.symlink_to(aside)
    with pytest.raises(BlockDamaged):
        store.scatter(BLOCK.header, target.places)


def test_encrypted_blocks_and_watched_files_are_read_in_one_run(tmp_path: Path) -> None:
    """Whoever stands in for the disk sees every read."""
    target = Target()
    before = target.content
    watched = open_store(tmp_path / "watched", files=FailingFiles())
    encrypted = open_store(tmp_path / "encrypted", encryptor=Encryptor(bytes(32)))
    for store in (watched, encrypted):
        store.write([(BLOCK.header, BLOCK.payload)])
        assert not store.scatter(BLOCK.header, target.places)
        store.close()
    assert target.content == before
