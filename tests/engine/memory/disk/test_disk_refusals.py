"""A disk that refuses any single operation, or everything from then on, costs time and nothing else."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.memory.disk.io import Identity
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import BlockDamaged, BlockMissing, StorageError
from tests.engine.memory.chains import FULL, Block, chain, check_totals, open_store, read, write_all
from tests.engine.memory.disk.failing_files import FailingFiles

pytestmark = [pytest.mark.pure, pytest.mark.long]

BLOCKS = chain(list(range(12)))
MOST_OPERATIONS = 60


class RefusingLooks(FailingFiles):
    """Refuses also to say which file has a name."""

    def identity(self, path: Path) -> Identity | None:
        self._count()
        return super().identity(path)


def write(blocks: list[Block], store: DiskStore) -> None:
    store.write((block.header, block.payload) for block in blocks)


def remove(store: DiskStore) -> None:
    store.remove(BLOCKS[0].key, FULL)


@pytest.mark.parametrize("is_passing", [True, False])
@pytest.mark.parametrize(
    ("action", "kind", "code", "num_refused"),
    [
        *((partial(write, BLOCKS[1:2]), FailingFiles, code, 9) for code in (errno.EROFS, errno.EIO)),
        *((partial(write, BLOCKS[1:]), FailingFiles, code, 15) for code in (errno.ENOSPC, errno.EIO)),
        (partial(write, BLOCKS[1:2]), RefusingLooks, errno.EIO, 14),
        (remove, FailingFiles, errno.ENOSPC, 2),
        (remove, FailingFiles, errno.EROFS, 4),
    ],
)
def test_a_write_or_removal_that_is_refused_anywhere_leaves_whole_blocks_and_right_totals(
    tmp_path: Path,
    action: Callable[[DiskStore], None],
    kind: type[FailingFiles],
    code: int,
    num_refused: int,
    is_passing: bool,
) -> None:
    """Trap 25: at every operation in turn of one block or several, also where looking is one."""
    assert _refuse_everywhere(tmp_path, kind(code), is_passing, action) == num_refused


def test_a_full_disk_never_keeps_blocks_from_going(tmp_path: Path) -> None:
    """Whoever has to free space may not need some."""
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    write_all(store, BLOCKS)
    files.fail(0)
    store.remove_keys([block.key for block in BLOCKS])
    assert list((tmp_path / "blocks").rglob("*.*")) == []
    files.fail(None)
    store.remove(BLOCKS[0].key, FULL)
    assert store.usage().num_bytes == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_store_that_cannot_be_opened_says_so_and_opens_later(tmp_path: Path, code: int) -> None:
    files = FailingFiles(code)
    for at in range(MOST_OPERATIONS):
        files.fail(at)
        with _refusal_told():
            open_store(tmp_path / "cache", files=files).close()
        if not files.has_refused:
            break
    assert at == 3
    files.fail(None)
    store = open_store(tmp_path / "cache", files=files)
    write_all(store, BLOCKS)


@pytest.mark.parametrize("is_passing", [True, False])
def test_a_collection_that_is_refused_anywhere_is_ended_by_the_next(tmp_path: Path, is_passing: bool) -> None:
    files = FailingFiles(errno.EROFS)
    for at in range(MOST_OPERATIONS):
        files.fail(None)
        store = open_store(tmp_path, files=files)
        for block in BLOCKS:
            store.write([(block.header, block.payload)])
        store.close()
        admin = CacheAdmin(tmp_path, files=files)
        files.fail(at, is_passing=is_passing)
        with _refusal_told():
            admin.collect(lambda block: block.key == BLOCKS[0].key)
        has_refused = files.has_refused
        files.fail(None)
        admin.collect(lambda block: block.key == BLOCKS[0].key)
        assert [block.key for block in admin.blocks()] == [BLOCKS[0].key]
        check_totals(tmp_path, admin.usage())
        admin.close()
        if not has_refused:
            break
    assert at == 10


def test_a_read_that_fails_is_a_miss(tmp_path: Path) -> None:
    """A bad sector: the block is set aside, computed again, and written again."""
    files = FailingFiles(errno.EIO)
    store = open_store(tmp_path, files=files)
    write_all(store, BLOCKS[:1])
    files.fail(0, is_passing=True)  # so small a block is read at once
    with pytest.raises(BlockDamaged, match="cannot be read"):
        read(store, BLOCKS[0])
    files.fail(None)
    assert not store.has(BLOCKS[0].key, FULL)
    write_all(store, BLOCKS[:1])
    assert read(store, BLOCKS[0]) == BLOCKS[0].payload


def test_a_directory_that_became_read_only_is_told_and_still_read_from(tmp_path: Path) -> None:
    files = FailingFiles(errno.EROFS)
    store = open_store(tmp_path, files=files)
    write_all(store, BLOCKS[:1])
    files.fail(0)
    with pytest.raises(StorageError, match=r"cannot be|Check the disk"):
        store.write([(BLOCKS[1].header, BLOCKS[1].payload)])
    assert read(store, BLOCKS[0]) == BLOCKS[0].payload
    assert store.has_all([block.key for block in BLOCKS], FULL) == [True, False, False]


def _refuse_everywhere(
    cache_dir: Path, files: FailingFiles, is_passing: bool, action: Callable[[DiskStore], object]
) -> int:
    """Do one thing on a store of one block with each operation refused in turn; return how many there are."""
    for at in range(MOST_OPERATIONS):
        files.fail(None)
        place = cache_dir / str(at)
        store = open_store(place, files=files)
        write_all(store, BLOCKS[:1])
        files.fail(at, is_passing=is_passing)
        with _refusal_told():
            action(store)
        has_refused = files.has_refused
        files.fail(None)
        for block in BLOCKS:
            try:
                assert read(store, block) == block.payload
            except BlockMissing:
                assert not store.has(block.key, FULL)
        for block in BLOCKS:
            store.write([(block.header, block.payload)])
        assert all(read(store, block) == block.payload for block in BLOCKS)
        check_totals(place, store.total_usage())
        assert not list(place.rglob("*.tmp"))
        store.close()
        if not has_refused:
            return at
    raise AssertionError("every operation is refused, whatever their number")


@contextmanager
def _refusal_told() -> Iterator[None]:
    """Allow a refusal that says what to do, and no other."""
    advice: str | None = None
    try:
        yield
    except StorageError as error:
        advice = str(error)
    assert advice is None or "space" in advice or "directory" in advice
