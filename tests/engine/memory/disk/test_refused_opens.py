"""A file that cannot be opened now is no damaged file: nothing good is thrown away."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.block_file import parse_header
from kvchat.engine.memory.disk.index_rebuild import LOOK_AGAIN_S
from kvchat.engine.memory.disk.io import SystemFiles
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import BlockDamaged, BlockMissing, StorageError
from tests.engine.memory.chains import (
    BLOCK_SIZE,
    FULL,
    Clock,
    chain,
    lose_row,
    open_store,
    path_of,
    read,
    write_all,
)

pytestmark = pytest.mark.pure

BLOCKS = chain(list(range(40 * BLOCK_SIZE)))
KEYS = [block.key for block in BLOCKS]


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process have no free descriptor."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, limits[1]))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while len(taken) <= highest + 8:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def lost_index(directory: Path, clock: Clock) -> Iterator[DiskStore]:
    """Yield a store that has lost its index, while there is no descriptor to look at the files with."""
    store = open_store(directory, clock=clock)
    write_all(store, BLOCKS)
    for block in BLOCKS:
        lose_row(store, directory, block)
    with no_descriptors():
        with pytest.raises(StorageError):
            store.rebuild()
        yield store


class Refusing(SystemFiles):
    """Opens no file to read."""

    gives_descriptors = False

    def __init__(self, code: int) -> None:
        self.code: int | None = code

    def open(self, path: Path) -> int:
        if self.code is not None:
            raise OSError(self.code, os.strerror(self.code))
        return super().open(path)


def test_no_block_is_lost_to_a_process_without_free_descriptors(tmp_path: Path, store: DiskStore) -> None:
    write_all(store, BLOCKS)
    with no_descriptors():
        for block in BLOCKS:
            with pytest.raises(StorageError, match="Too many open files"):
                read(store, block)
    assert store.has_all(KEYS, FULL) == [True] * len(BLOCKS)
    assert [read(store, block) for block in BLOCKS] == [block.payload for block in BLOCKS]
    assert not [*tmp_path.glob("quarantine/*")]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EINTR])
def test_a_file_that_is_not_opened_now_stays_with_its_row(tmp_path: Path, code: int) -> None:
    files = Refusing(code)
    store = open_store(tmp_path, files=files)
    write_all(store, BLOCKS[:1])
    with pytest.raises(StorageError, match="cannot be opened"):
        read(store, BLOCKS[0])
    files.code = None
    assert read(store, BLOCKS[0]) == BLOCKS[0].payload


@pytest.mark.parametrize("code", [errno.EIO, errno.ELOOP])
def test_what_the_medium_does_not_give_or_is_no_file_is_set_aside(tmp_path: Path, code: int) -> None:
    files = Refusing(code)
    store = open_store(tmp_path, files=files)
    write_all(store, BLOCKS[:1])
    with pytest.raises(BlockDamaged):
        read(store, BLOCKS[0])
    assert not path_of(tmp_path, BLOCKS[0]).exists()


def test_files_that_cannot_be_looked_at_are_found_later(tmp_path: Path) -> None:
    """The index is lost while there is no descriptor for the files: they stay, and are looked at again."""
    clock = Clock()
    with lost_index(tmp_path, clock) as store:
        assert not any(store.has_all(KEYS, FULL))
    assert len([*tmp_path.rglob("*.safetensors")]) == len(BLOCKS)
    assert not any(store.has_all(KEYS, FULL))
    clock.now_s += LOOK_AGAIN_S
    assert all(store.has_all(KEYS, FULL))
    assert [read(store, block) for block in BLOCKS] == [block.payload for block in BLOCKS]
    store.close()


def test_files_that_are_never_opened_are_looked_at_ever_more_rarely(tmp_path: Path) -> None:
    """Whoever asks waits for it, and it takes as long as there are files."""
    clock = Clock()
    with lost_index(tmp_path, clock) as store:
        for num_waits in (1, 2):
            clock.now_s += num_waits * LOOK_AGAIN_S
            assert not any(store.has_all(KEYS, FULL))
    clock.now_s += 3 * LOOK_AGAIN_S
    assert not any(store.has_all(KEYS, FULL))
    clock.now_s += LOOK_AGAIN_S
    assert all(store.has_all(KEYS, FULL))
    store.close()


def test_a_header_is_damaged_missing_or_not_to_be_read_now(tmp_path: Path) -> None:
    path = tmp_path / "block"
    with pytest.raises(BlockMissing):
        parse_header(path)
    path.write_bytes(b"no block")
    with pytest.raises(BlockDamaged):
        parse_header(path)
    with no_descriptors(), pytest.raises(StorageError):
        parse_header(path)


def test_one_file_that_cannot_be_looked_at_does_not_hide_the_others(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock=clock)
    write_all(store, BLOCKS)
    keys = [block.key for block in BLOCKS]
    for block in BLOCKS:
        lose_row(store, tmp_path, block)
    path_of(tmp_path, BLOCKS[3]).chmod(0)
    store.rebuild()
    is_root = os.access(path_of(tmp_path, BLOCKS[3]), os.R_OK)
    assert store.has_all(keys, FULL) == [is_root or block is not BLOCKS[3] for block in BLOCKS]
    path_of(tmp_path, BLOCKS[3]).chmod(0o600)
    clock.now_s += LOOK_AGAIN_S
    assert all(store.has_all(keys, FULL))
