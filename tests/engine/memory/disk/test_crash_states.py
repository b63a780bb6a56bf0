"""Whatever a loss of power leaves of the last operations, the store keeps its word; see `crash_states`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.memory.disk.io import SystemFiles
from tests.engine.memory.chains import (
    FINGERPRINT,
    FULL,
    block_behind,
    chain,
    open_store,
    put_blocks,
    read_if_whole,
)
from tests.engine.memory.disk.crash_states import (
    Forget,
    Recorded,
    check_every_state,
    is_any_state_wrong,
    without_syncs,
)
from tests.engine.memory.disk.recorded_files import (
    AnotherBoot,
    Commit,
    Note,
    Operation,
    RecordingFiles,
    SyncDir,
    Tree,
)

pytestmark = [pytest.mark.pure, pytest.mark.long]

OLD = chain([1, 2, 3, 4, 5, 6, 7, 8, 9])
NEW = chain([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13])
OLDER_TAIL = block_behind(NEW[2].key, [13, 14])
BLOCKS = {block.key: block for block in (*OLD, *NEW, OLDER_TAIL)}


def _without_names_of_blocks(operation: Operation) -> Operation | None:
    is_directory = isinstance(operation, SyncDir) and operation.path.count("/") == 2
    return None if is_directory else operation


def _without_names_of_directories(operation: Operation) -> Operation | None:
    is_above = isinstance(operation, SyncDir) and operation.path.count("/") == 1
    return None if is_above else operation


def _without_durable_commits(operation: Operation) -> Operation | None:
    return replace(operation, is_durable=False) if isinstance(operation, Commit) else operation


@pytest.mark.parametrize(
    "forget",
    [without_syncs, _without_names_of_blocks, _without_names_of_directories, _without_durable_commits],
)
def test_one_sort_of_sync_left_out_is_found(quick_path: Path, forget: Forget) -> None:
    assert is_any_state_wrong(quick_path / "after", _recorded(quick_path / "run"), _complaints, forget)


def _recorded(cache_dir: Path) -> Recorded:
    """Write a block alone and others together, remove blocks, and collect what nothing refers to."""
    base, files = _with_one_conversation(cache_dir)
    store = open_store(cache_dir, files=files)
    for together in ([NEW[2]], [OLDER_TAIL, NEW[3]]):
        assert store.write((block.header, block.payload) for block in together) == len(together)
        for block in together:
            files.note("there", block.key)
    files.note("going", OLDER_TAIL.key)
    store.remove(OLDER_TAIL.key, FULL)
    files.note("going", OLD[2].key)
    store.remove(OLD[2].key, FULL)
    store.close()
    admin = CacheAdmin(cache_dir, files=files)
    files.note("going", NEW[3].key)
    admin.collect(lambda block: block.key != NEW[3].key)
    files.note("gone", NEW[3].key)
    admin.close()
    return base, files.operations


def _recorded_in_held_room(cache_dir: Path) -> Recorded:
    """Hold room for three blocks, and write two of them."""
    base, files = _with_one_conversation(cache_dir)
    store = open_store(cache_dir, files=files, limit_bytes=1 << 20)
    new = (NEW[2], OLDER_TAIL, NEW[3])
    with store.room_for([block.header for block in new], FINGERPRINT, [block.key for block in OLD]):
        for block in new[:2]:
            assert store.write([(block.header, block.payload)], is_wanted=True)
            files.note("there", block.key)
    store.close()
    return base, files.operations


@pytest.mark.parametrize("num_samples", [2, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("record", "least"), [(_recorded, 100), (_recorded_in_held_room, 80)])
def test_every_acknowledged_block_survives_and_nothing_leaks(
    quick_path: Path, record: Callable[[Path], Recorded], num_samples: int, least: int
) -> None:
    """Traps 24 and 25: writes, of several blocks at once too, a tail that is replaced, removal, and garbage
    collection; room that was held before it was used, and what others were to be made from.
    """
    check_every_state(quick_path / "after", record(quick_path / "run"), _complaints, num_samples, least)


def _with_one_conversation(cache_dir: Path) -> tuple[Tree, RecordingFiles]:
    """Return the directory as it is before the crash, and what records what is done to it from there on."""
    put_blocks(cache_dir, OLD)
    return Tree.of(cache_dir), RecordingFiles(cache_dir)


def _complaints(cache_dir: Path, called: Sequence[Operation]) -> list[str]:
    """Return how a state breaks a promise that was given before the crash."""
    notes = [operation for operation in called if isinstance(operation, Note)]
    there = {block.key for block in OLD} | {note.about for note in notes if note.what == "there"}
    there -= {note.about for note in notes if note.what == "going"}
    gone = {note.about for note in notes if note.what == "gone"}
    files: SystemFiles = AnotherBoot()
    store = open_store(cache_dir, files=files)
    complaints = []
    for key, block in BLOCKS.items():
        is_announced, content = store.has(key, FULL), read_if_whole(store, block)
        if key in there and not (is_announced and content == block.payload):
            complaints.append(f"{block.header.token_ids} was acknowledged and is not there")
        if key in gone and content is not None:
            complaints.append(f"{block.header.token_ids} was removed and is there again")
        if content not in (None, block.payload):
            complaints.append(f"{block.header.token_ids} holds other bytes")
    sizes = [path.stat().st_size for path in (cache_dir / "blocks").rglob("*.*") if path.is_file()]
    usage = store.total_usage()
    if (usage.num_blocks, usage.num_bytes) != (len(sizes), sum(sizes)):
        complaints.append(f"{usage} is accounted for {len(sizes)} files of {sum(sizes)} bytes")
    complaints += [f"{path} is kept for nobody" for path in cache_dir.glob("held/*.keep")]
    store.close()
    return complaints + _leaks(cache_dir, files)


def _leaks(cache_dir: Path, files: SystemFiles) -> list[str]:
    """Collect everything and return what is left."""
    admin = CacheAdmin(cache_dir, files=files)
    admin.collect(lambda block: False)
    left = [f"{path} is left" for path in (cache_dir / "blocks").rglob("*")]
    left += [f"{usage} is left" for name, usage in admin.usages().items() if name == FINGERPRINT]
    admin.close()
    return left
