"""Blocks that are written at once: the same files as one after another, and fewer waits for the medium."""

import errno
from collections.abc import Sequence
from pathlib import Path
from threading import Barrier

import pytest

from kvchat.engine.memory.disk.io import SystemFiles, at_once
from kvchat.errors import StorageError
from tests.engine.memory.chains import chain, open_store, read, write_all
from tests.engine.memory.disk.recorded_files import Commit, RecordingFiles, Rename, Sync, SyncDir
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.pure

BLOCKS = chain([number % 97 for number in range(40)])
DUE = [(block.header, block.payload) for block in BLOCKS]


def files_in(cache_dir: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(cache_dir): path.read_bytes()
        for path in (cache_dir / "blocks").rglob("*")
        if path.is_file()
    }


def test_the_files_are_those_of_writing_one_after_another(tmp_path: Path) -> None:
    together, in_turn = open_store(tmp_path / "a"), open_store(tmp_path / "b")
    assert together.write(DUE[:4]) == 4
    assert together.write(DUE) == len(DUE) - 4, "what is there is left out"
    write_all(in_turn, BLOCKS)
    assert files_in(tmp_path / "a") == files_in(tmp_path / "b")
    assert together.usage() == in_turn.usage()
    assert together.written() == in_turn.written()
    assert [read(together, block) for block in BLOCKS] == [block.payload for block in BLOCKS]


def test_no_file_has_its_name_before_all_are_synced_and_a_directory_is_synced_once(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    open_store(tmp_path, files=files).write(DUE)
    kinds = [type(operation) for operation in files.operations]
    first_name = kinds.index(Rename)
    assert kinds[:first_name].count(Sync) == len(DUE)
    last_name = len(kinds) - 1 - kinds[::-1].index(Rename)
    directories = [one.path for one in files.operations[last_name:] if isinstance(one, SyncDir)]
    assert len(directories) == len(set(directories)) == len({path.parent for path in files_in(tmp_path)})
    above = [one for one in files.operations[:first_name] if isinstance(one, SyncDir)]
    assert len(above) == len({one.path for one in above})


@pytest.mark.parametrize("num_fit", [0, 3])
def test_where_the_limit_has_no_room_for_all_none_is_written(tmp_path: Path, num_fit: int) -> None:
    measured = open_store(tmp_path / "a")
    measured.write(DUE)
    each = measured.usage().num_bytes // len(DUE)
    store = open_store(tmp_path / "b", limit_bytes=(num_fit + 1) * each)
    assert store.write(DUE) == 0
    assert (store.usage().num_blocks, files_in(tmp_path / "b")) == (0, {})
    with pytest.raises(StorageError, match="of today"):
        open_store(tmp_path / "c", daily_bytes=num_fit * each).write(DUE)
    assert files_in(tmp_path / "c") == {}


class MeetingFiles(SystemFiles):
    """Takes no byte of a file before bytes of all of them are offered."""

    def __init__(self, num_files: int) -> None:
        self.begun = Barrier(num_files, timeout=PATIENCE_S)

    def write(self, descriptor: int, parts: Sequence[memoryview]) -> int:
        self.begun.wait()
        return super().write(descriptor, parts)


def test_bytes_of_all_files_are_on_their_way_at_one_time(tmp_path: Path) -> None:
    """One file after another would never end."""
    store = open_store(tmp_path, files=MeetingFiles(len(DUE)))
    assert store.write(DUE) == len(DUE)
    assert [read(store, block) for block in BLOCKS] == [block.payload for block in BLOCKS]


def test_rows_of_all_are_reserved_in_one_commit_and_settled_in_one(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    store = open_store(tmp_path, files=files)
    store.write(DUE[:1])  # makes the writer known
    before = len(files.operations)
    assert store.write(DUE) == len(DUE) - 1
    commits = [one for one in files.operations[before:] if isinstance(one, Commit)]
    assert [one.is_durable for one in commits] == [False, False]


class SlowDirectories(SystemFiles):
    """Lets nobody past a directory before all of them are asked for."""

    def __init__(self) -> None:
        self.begun: Barrier | None = None

    def sync_dir(self, path: Path) -> None:
        if self.begun is not None:
            self.begun.wait()


def test_directories_that_blocks_went_from_are_waited_for_side_by_side(tmp_path: Path) -> None:
    files = SlowDirectories()
    store = open_store(tmp_path, files=files)
    store.write(DUE)
    directories = {path.parent for path in files_in(tmp_path)}
    assert len(directories) > 4
    assert store.remove_keys(block.key for block in BLOCKS) > 0
    files.begun = Barrier(len(directories), timeout=PATIENCE_S)
    store._directory.sync_removed()
    files.begun = None


def test_the_first_to_fail_is_told() -> None:
    ended: list[int] = []

    def wait(item: int) -> None:
        ended.append(item)
        if item != 2:
            raise OSError(errno.EIO if item == 1 else errno.ENOSPC, "no")

    with pytest.raises(OSError, match="no") as caught:
        at_once(wait, (2, 1, 3, 2))
    assert caught.value.errno == errno.EIO
    assert {1, 2} <= set(ended)
