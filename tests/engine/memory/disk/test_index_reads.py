"""Look-ups wait for nobody who writes: the engine asks in its steps."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from kvchat.engine.memory.disk.io import SystemFiles
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import StorageError
from tests.engine.memory.chains import FULL, chain, open_store, put_blocks, read, write_all
from tests.threads import wait_until_in

pytestmark = pytest.mark.pure

BLOCKS = chain(list(range(12)))
KEYS = [block.key for block in BLOCKS]


def test_a_look_up_does_not_wait_for_a_write_that_waits_for_another_process(
    tmp_path: Path, store: DiskStore
) -> None:
    write_all(store, BLOCKS[:2])
    other = sqlite3.connect(tmp_path / "index.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writing = Thread(target=write_all, args=(store, BLOCKS[2:]), daemon=True)
    writing.start()
    wait_until_in(writing, "_transaction")
    assert store.has_all(KEYS, FULL) == [True, True, False]
    assert store.nearest(KEYS[0], BLOCKS[1].header.token_ids, 1)
    assert store.total_usage().num_blocks == 2
    assert writing.is_alive(), "it was still waiting for the lock while all this was asked"
    other.execute("ROLLBACK")
    writing.join()
    assert store.has_all(KEYS, FULL) == [True, True, True]
    other.close()


def test_what_was_written_is_read_at_once_from_any_thread(store: DiskStore) -> None:
    for block in BLOCKS:
        writing = Thread(target=write_all, args=(store, [block]))
        writing.start()
        writing.join()
        assert store.has(block.key, FULL)
    store.remove(KEYS[-1], FULL)
    assert store.has_all(KEYS, FULL) == [True, True, False]


def test_a_look_up_that_finds_damage_mends_the_index_once(tmp_path: Path) -> None:
    """Trap 24: both connections go on with the new file, and blocks are found again."""
    put_blocks(tmp_path, BLOCKS)
    path = tmp_path / "index.db"
    store = open_store(tmp_path)
    data = bytearray(path.read_bytes())
    data[4096:] = bytes([0x5A]) * (len(data) - 4096)
    with path.open("r+b") as file:
        file.write(data)
    for _ in range(3):
        store.has_all(KEYS, FULL)
    assert store.has_all(KEYS, FULL) == [True, True, True]
    more = chain([50, 51, 52, 53])
    write_all(store, more)
    assert read(store, more[0]) == more[0].payload
    assert store.has(more[0].key, FULL)


class Meeting(SystemFiles):
    """Lets other processes act, each at the end of one transaction."""

    def __init__(self) -> None:
        self.others: list[Callable[[], object]] = []

    def commit(self, connection: sqlite3.Connection) -> None:
        super().commit(connection)
        if self.others:
            self.others.pop()()


def test_an_index_that_two_processes_begin_anew_at_once_is_read_and_written(tmp_path: Path) -> None:
    """The name is taken away between a process's first connection and its second."""
    files = Meeting()
    store = open_store(tmp_path, files=files)
    write_all(store, BLOCKS[:2])
    unlink_index(tmp_path)
    files.others.append(lambda: unlink_index(tmp_path))
    write_all(store, BLOCKS[2:])
    assert store.has_all(KEYS, FULL) == [True, True, True]


def test_an_index_that_could_not_be_opened_again_is_opened_by_a_later_write(
    tmp_path: Path, store: DiskStore
) -> None:
    write_all(store, BLOCKS[:2])
    unlink_index(tmp_path)
    (tmp_path / "index.db").mkdir()
    with pytest.raises(StorageError):
        write_all(store, BLOCKS[2:])
    (tmp_path / "index.db").rmdir()
    write_all(store, BLOCKS[2:])
    assert store.has_all(KEYS, FULL) == [True, True, True]


def unlink_index(directory: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{directory / 'index.db'}{suffix}").unlink(missing_ok=True)
