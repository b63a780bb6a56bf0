"""A file that cannot be opened now is no damaged file: nothing good is thrown away."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.index_rebuild import LOOK_AGAIN_S
from kvchat.engine.memory.disk.io import SystemFiles
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import BlockDamaged, StorageError
from tests.engine.memory.chains import BLOCK_SIZE, FULL, chain, lose_row, open_store, path_of, read, write_all
from tests.hand_clock import HandClock

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


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        *((code, StorageError) for code in (errno.EMFILE, errno.ENOMEM, errno.EACCES, errno.EINTR)),
        *((code, BlockDamaged) for code in (errno.EIO, errno.ELOOP)),
    ],
)
def test_a_file_that_is_not_opened_now_stays_and_what_the_medium_does_not_give_or_is_no_file_is_set_aside(
    tmp_path: Path, code: int, refusal: type[Exception]
) -> None:
    files = Refusing(code)
    store = open_store(tmp_path, files=files)
    write_all(store, BLOCKS[:1])
    with pytest.raises(refusal):
        read(store, BLOCKS[0])
    assert path_of(tmp_path, BLOCKS[0]).exists() == (refusal is StorageError)
    files.code = None
    if refusal is StorageError:
        assert read(store, BLOCKS[0]) == BLOCKS[0].payload


def test_files_that_cannot_be_looked_at_stay_and_are_looked_at_later_ever_more_rarely(tmp_path: Path) -> None:
    """The index is lost while there is no descriptor for the files; whoever asks waits for the looking."""
    clock = HandClock()
    store = open_store(tmp_path, clock=clock)
    write_all(store, BLOCKS)
    for block in BLOCKS:
        lose_row(store, tmp_path, block)
    with no_descriptors():
        with pytest.raises(StorageError):
            store.rebuild()
        for num_waits in (0, 1, 2):
            clock.now_s += num_waits * LOOK_AGAIN_S
            assert not any(store.has_all(KEYS, FULL))
    assert len([*tmp_path.rglob("*.safetensors")]) == len(BLOCKS)
    clock.now_s += 3 * LOOK_AGAIN_S
    assert not any(store.has_all(KEYS, FULL))
    clock.now_s += LOOK_AGAIN_S
    assert all(store.has_all(KEYS, FULL))
    assert [read(store, block) for block in BLOCKS] == [block.payload for block in BLOCKS]
