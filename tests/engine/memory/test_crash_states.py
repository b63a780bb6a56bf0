"""Whatever a loss of power leaves of the last operations, the store keeps its word.

A kill cannot test an fsync: the kernel still has every byte. So the operations of a run are recorded, and the
store is opened in every state that the medium may be in after any number of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree

import pytest

from kvchat.engine.memory.block_catalog import BlockCatalog
from kvchat.engine.memory.files import Files
from kvchat.errors import BlockDamaged, BlockMissing
from tests.engine.memory.chains import FINGERPRINT, FULL, Block, block_behind, chain, open_store, read
from tests.engine.memory.recorded_files import (
    AnotherBoot,
    Commit,
    CrashStates,
    Note,
    Operation,
    RecordingFiles,
    Sync,
    SyncDir,
    Tree,
)

pytestmark = pytest.mark.pure

OLD = chain([1, 2, 3, 4, 5, 6, 7, 8, 9])
NEW = chain([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13])
OLDER_TAIL = block_behind(NEW[2].key, [13, 14])
BLOCKS = {block.key: block for block in (*OLD, *NEW, OLDER_TAIL)}

Recorded = tuple[Tree, list[Operation]]
"""A directory, and what was done to it then."""
Look = Callable[[Path, Tree, Sequence[Operation]], list[str]]
"""Puts a state into a place and returns how it breaks a promise that these operations have given."""
Forget = Callable[[Operation], Operation | None]
"""Leaves operations out, or makes less of them."""


def check_every_state(place: Path, recorded: Recorded, look: Look, num_samples: int, least: int) -> None:
    """Look at every state, of which there are more than `least`."""
    base, operations = recorded
    num_states = 0
    for num_called, state in CrashStates(base, operations, Random(0), num_samples):
        assert look(place, state, operations[:num_called]) == []
        num_states += 1
    assert num_states > least


def is_any_state_wrong(place: Path, recorded: Recorded, look: Look, forget: Forget) -> bool:
    """Return whether a state breaks a promise where some operations are left out."""
    base, operations = recorded
    kept = [operation for operation in map(forget, operations) if operation is not None]
    states = CrashStates(base, kept, Random(0), num_samples=4)
    return any(look(place, state, kept[:num]) for num, state in states)


@pytest.mark.parametrize(("num_samples", "least"), [(2, 100), pytest.param(40, 600, marks=pytest.mark.slow)])
def test_every_acknowledged_block_survives_and_nothing_leaks(
    quick_path: Path, num_samples: int, least: int
) -> None:
    """Traps 24 and 25: writes, a tail that is replaced, removal, and garbage collection."""
    check_every_state(quick_path / "after", _recorded(quick_path / "run"), _complaints, num_samples, least)


def without_syncs(operation: Operation) -> Operation | None:
    return None if isinstance(operation, Sync) else operation


def _without_names_of_blocks(operation: Operation) -> Operation | None:
    is_shelf = isinstance(operation, SyncDir) and operation.path.count("/") == 2
    return None if is_shelf else operation


def _without_names_of_shelves(operation: Operation) -> Operation | None:
    is_above = isinstance(operation, SyncDir) and operation.path.count("/") == 1
    return None if is_above else operation


def _without_durable_commits(operation: Operation) -> Operation | None:
    return replace(operation, is_durable=False) if isinstance(operation, Commit) else operation


@pytest.mark.parametrize(
    "forget",
    [without_syncs, _without_names_of_blocks, _without_names_of_shelves, _without_durable_commits],
)
def test_one_sort_of_sync_left_out_is_found(quick_path: Path, forget: Forget) -> None:
    assert is_any_state_wrong(quick_path / "after", _recorded(quick_path / "run"), _complaints, forget)


def _recorded(cache_dir: Path) -> Recorded:
    """Run the store on a directory with one conversation, and return that directory and what was done."""
    store = open_store(cache_dir)
    for block in OLD:
        store.write(block.header, block.payload)
    store.close()
    base = Tree.of(cache_dir)
    files = RecordingFiles(cache_dir)
    store = open_store(cache_dir, files=files)
    for block in (NEW[2], OLDER_TAIL, NEW[3]):
        store.write(block.header, block.payload)
        files.note("there", block.key)
    files.note("going", OLDER_TAIL.key)
    store.remove(OLDER_TAIL.key, FULL)
    files.note("going", OLD[2].key)
    store.remove(OLD[2].key, FULL)
    store.close()
    catalog = BlockCatalog(cache_dir, files=files)
    files.note("going", NEW[3].key)
    catalog.collect(lambda block: block.key != NEW[3].key)
    files.note("gone", NEW[3].key)
    catalog.close()
    return base, files.operations


@pytest.mark.parametrize(("num_samples", "least"), [(2, 60), pytest.param(40, 300, marks=pytest.mark.slow)])
def test_blocks_that_are_written_together_survive_like_those_that_are_not(
    quick_path: Path, num_samples: int, least: int
) -> None:
    """Traps 24 and 25: nothing is acknowledged before all of them are durable, and none is there in part."""
    recorded = _recorded_together(quick_path / "run")
    check_every_state(quick_path / "after", recorded, _complaints, num_samples, least)


@pytest.mark.parametrize("forget", [without_syncs, _without_names_of_blocks, _without_names_of_shelves])
def test_one_sort_of_sync_left_out_of_blocks_written_together_is_found(
    quick_path: Path, forget: Forget
) -> None:
    recorded = _recorded_together(quick_path / "run")
    assert is_any_state_wrong(quick_path / "after", recorded, _complaints, forget)


def _recorded_together(cache_dir: Path) -> Recorded:
    """Do the same with three blocks that are written at once."""
    store = open_store(cache_dir)
    store.write_all((block.header, block.payload) for block in OLD)
    store.close()
    base = Tree.of(cache_dir)
    files = RecordingFiles(cache_dir)
    store = open_store(cache_dir, files=files)
    new = (NEW[2], OLDER_TAIL, NEW[3])
    assert store.write_all((block.header, block.payload) for block in new) == len(new)
    for block in new:
        files.note("there", block.key)
    store.close()
    return base, files.operations


def _complaints(cache_dir: Path, state: Tree, called: Sequence[Operation]) -> list[str]:
    """Return how a state breaks a promise that was given before the crash."""
    rmtree(cache_dir, ignore_errors=True)
    cache_dir.mkdir()
    state.put(cache_dir)
    notes = [operation for operation in called if isinstance(operation, Note)]
    there = {block.key for block in OLD} | {note.about for note in notes if note.what == "there"}
    there -= {note.about for note in notes if note.what == "going"}
    gone = {note.about for note in notes if note.what == "gone"}
    files: Files = AnotherBoot()
    store = open_store(cache_dir, files=files)
    complaints = []
    for key, block in BLOCKS.items():
        is_announced, content = store.has(key, FULL), _content(store, block)
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
    store.close()
    return complaints + _leaks(cache_dir, files)


def _content(store, block: Block) -> bytes | None:
    try:
        return read(store, block)
    except (BlockMissing, BlockDamaged):
        return None


def _leaks(cache_dir: Path, files: Files) -> list[str]:
    """Collect everything and return what is left."""
    catalog = BlockCatalog(cache_dir, files=files)
    catalog.collect(lambda block: False)
    left = [f"{path} is left" for path in (cache_dir / "blocks").rglob("*")]
    left += [f"{usage} is left" for name, usage in catalog.usages().items() if name == FINGERPRINT]
    catalog.close()
    return left
