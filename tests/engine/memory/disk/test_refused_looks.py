"""Where nobody can tell whether a file is there, it is computed again, and nothing is thrown away."""

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.memory.disk.io import Identity, SystemFiles
from kvchat.errors import StorageError
from tests.engine.memory.chains import (
    BLOCK_SIZE,
    FULL,
    chain,
    lose_row,
    open_store,
    path_of,
    put_blocks,
    read,
    write_all,
)

pytestmark = pytest.mark.pure

BLOCKS = chain(list(range(6 * BLOCK_SIZE)))
KEYS = [block.key for block in BLOCKS]
CODES = [errno.EACCES, errno.EIO, errno.ESTALE]


class Blind(SystemFiles):
    """Says nothing of some files."""

    def __init__(self, code: int) -> None:
        self.hides: Callable[[Path], bool] = lambda _: False
        self._code = code

    def identity(self, path: Path) -> Identity | None:
        self._look(path)
        return super().identity(path)

    def entries(self, path: Path) -> Sequence[os.DirEntry[str]]:
        self._look(path)
        return super().entries(path)

    def unlink(self, path: Path) -> None:
        self._look(path)
        super().unlink(path)

    def _look(self, path: Path) -> None:
        if self.hides(path):
            raise OSError(self._code, os.strerror(self._code), str(path))


def is_block(path: Path) -> bool:
    return path.suffix == ".safetensors"


@pytest.mark.parametrize("code", CODES)
def test_blocks_that_cannot_be_looked_at_are_not_there_until_they_can_be(tmp_path: Path, code: int) -> None:
    files = Blind(code)
    with closing(open_store(tmp_path, files=files)) as store:
        write_all(store, BLOCKS)
        parent, ids = BLOCKS[1].header.parent, BLOCKS[1].header.token_ids
        files.hides = is_block
        assert store.has_all(KEYS, FULL) == [False] * len(KEYS)
        assert store.nearest(parent, ids, 2) == ()
        assert not store.has(KEYS[0], FULL)
        assert store.children(parent) == ()
        with pytest.raises(StorageError, match="cannot be"):
            store.write([(BLOCKS[0].header, BLOCKS[0].payload)])
        files.hides = lambda _: False
        assert store.has_all(KEYS, FULL) == [True] * len(KEYS)
        assert [read(store, block) for block in BLOCKS] == [block.payload for block in BLOCKS]


@pytest.mark.parametrize("code", CODES)
def test_an_index_that_cannot_be_looked_at_refuses_writes_and_comes_back(tmp_path: Path, code: int) -> None:
    files = Blind(code)
    with closing(open_store(tmp_path, files=files)) as store:
        write_all(store, BLOCKS[:2])
        files.hides = lambda path: path.name == "index.db"
        with pytest.raises(StorageError, match="cannot be used"):
            store.write([(BLOCKS[2].header, BLOCKS[2].payload)])
        assert store.has_all(KEYS[:3], FULL) == [True, True, False]
        files.hides = lambda _: False
        write_all(store, BLOCKS[2:])
        assert store.has_all(KEYS, FULL) == [True] * len(KEYS)


def test_a_directory_that_cannot_be_listed_keeps_its_rows_and_hides_no_other(tmp_path: Path) -> None:
    files = Blind(errno.EACCES)
    with closing(open_store(tmp_path, files=files)) as store:
        write_all(store, BLOCKS)
        lost = BLOCKS[3]
        lose_row(store, tmp_path, lost)
        directory = path_of(tmp_path, BLOCKS[0]).parent
        assert directory != path_of(tmp_path, lost).parent
        files.hides = lambda path: path == directory or path.parent == directory
        store.rebuild()
        assert store.has_all(KEYS, FULL) == [block != BLOCKS[0] for block in BLOCKS]
        files.hides = lambda _: False
        assert store.has_all(KEYS, FULL) == [True] * len(KEYS)


def test_what_nothing_refers_to_is_collected_beside_a_directory_that_cannot_be_listed(tmp_path: Path) -> None:
    files = Blind(errno.EACCES)
    put_blocks(tmp_path, BLOCKS)
    directory = path_of(tmp_path, BLOCKS[0]).parent
    with closing(CacheAdmin(tmp_path, files=files)) as admin:
        files.hides = lambda path: path == directory
        assert admin.collect(lambda block: block.key == KEYS[0]).num_blocks == len(BLOCKS) - 1
        assert path_of(tmp_path, BLOCKS[0]).exists()


def test_a_damaged_index_that_cannot_be_replaced_now_ends_nothing(tmp_path: Path) -> None:
    files = Blind(errno.EROFS)
    with closing(open_store(tmp_path, files=files)) as store:
        write_all(store, BLOCKS[:-1])
    index = tmp_path / "index.db"
    data = index.read_bytes()
    with closing(open_store(tmp_path, files=files)) as store:
        index.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))
        files.hides = lambda path: path.name == "index.db"
        assert store.has_all(KEYS, FULL) == [False] * len(KEYS)
        files.hides = lambda _: False
        write_all(store, BLOCKS[-1:])
        assert store.has_all(KEYS, FULL) == [True] * len(KEYS)
