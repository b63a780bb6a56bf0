"""What a loss of power leaves of the small files beside blocks: kept lists, packs, what fingerprints are of,
and of damaged blocks that were set aside.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import time

import pytest

from kvchat.engine.memory.disk.block_encryption import DiskKey
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.memory.disk.io import SystemFiles
from kvchat.engine.memory.disk.pinned_blocks import PinnedBlocks
from kvchat.engine.models.fingerprint import digest_of
from kvchat.engine.models.known_fingerprints import recall, remember
from kvchat.errors import BlockDamaged, BlockMissing
from kvchat.platform.private_files import STALE_S
from kvchat.session.packs import Pack, PackStore
from tests.damage import flip
from tests.engine.memory.chains import FINGERPRINT, FULL, chain, open_store, path_of, read
from tests.engine.memory.disk.crash_states import (
    Forget,
    Recorded,
    check_every_state,
    is_any_state_wrong,
    without_syncs,
)
from tests.engine.memory.disk.recorded_files import (
    AnotherBoot,
    Note,
    Operation,
    RecordingFiles,
    SyncDir,
    Tree,
)

pytestmark = pytest.mark.pure

BLOCKS = chain([1, 2, 3, 4, 5, 6, 7, 8, 9])
FEW = frozenset((FINGERPRINT, DiskKey(block.key)) for block in BLOCKS[:1])
MANY = frozenset((FINGERPRINT, DiskKey(block.key)) for block in BLOCKS)
FIELDS, OTHER_FIELDS = {"dtype": "float32"}, {"dtype": "bfloat16"}
PLACES = ("kept", "packs", "fingerprints")


class Small:
    """The small files of one directory, and what is in them."""

    def __init__(self, place: Path, files: SystemFiles) -> None:
        self.kept = PinnedBlocks(place, files)
        self.packs = PackStore(place / "packs", None, files)
        self._place, self._files = place, files

    def keep(self, name: str, blocks: frozenset[tuple[bytes, DiskKey]]) -> None:
        self.kept.keep(name, FINGERPRINT, sorted(key for _, key in blocks))

    def remember(self, fields: dict[str, str]) -> None:
        remember(self._place, fields, self._files)

    def values(self) -> dict[str, object]:
        """Return what each file says."""
        return {
            "pack": self.kept.of("pack"),
            "session": self.kept.of("session"),
            "packs": tuple(sorted(pack.text for pack in self.packs.all())),
            "fields": recall(self._place, digest_of(FIELDS)),
        }


def pack(text: str) -> Pack:
    """Return a pack whose name all others have too."""
    return Pack(
        id=text,
        name="spec",
        text=text,
        sources=(),
        model="starter",
        adapter="",
        fingerprint=FINGERPRINT.hex(),
        cache_format="exact",
        token_ids=(1, 2, 3),
        block_size=4,
        created_at=1.0,
    )


def recorded(place: Path) -> Recorded:
    """Write, replace and remove small files, and note what each is to say."""
    open_store(place).close()
    Small(place, SystemFiles()).keep("pack", FEW)
    base = Tree.of(place)
    files = RecordingFiles(place)
    small = Small(place, files)

    def noted(name: str, act: Callable[[], None], *values: object) -> None:
        """Do something on whose way a file may have any of these values, the last of them in the end."""
        for value in values:
            files.note("begun", (name, value))
        act()
        files.note("done", (name, values[-1]))

    noted("pack", lambda: small.keep("pack", MANY), MANY)
    noted("session", lambda: small.keep("session", FEW), FEW)
    noted("pack", lambda: small.kept.let_go("pack"), frozenset())
    noted("fields", lambda: small.remember(FIELDS), FIELDS)
    noted("packs", lambda: small.packs.put(pack("one")), ("one",))
    noted("packs", lambda: small.packs.put(pack("two")), ("one", "two"), ("two",))
    noted("packs", lambda: small.packs.remove(pack("two")), ())
    return base, files.operations


def complaints(place: Path, called: Sequence[Operation]) -> list[str]:
    """Return which files say neither what was written last, nor what was being written."""
    allowed: dict[str, list[object]] = {
        "pack": [FEW],
        "session": [frozenset()],
        "packs": [()],
        "fields": [None],
    }
    for note in called:
        if isinstance(note, Note):
            assert isinstance(note.about, tuple)
            name, value = note.about
            allowed[name] = [value] if note.what == "done" else [*allowed[name], value]
    small = Small(place, AnotherBoot())
    found = [f"{name} is {value}" for name, value in small.values().items() if value not in allowed[name]]
    return found + left_after_a_while(place, small)


def left_after_a_while(place: Path, small: Small) -> list[str]:
    """Return what is half written still once others were written in each directory, later."""
    then = time() - 2 * STALE_S
    for path in place.rglob("*"):
        os.utime(path, (then, then))
    small.keep("another", FEW)
    small.remember(OTHER_FIELDS)
    small.packs.put(pack("another"))
    return [f"{path} is left" for name in PLACES for path in (place / name).glob(".*")]


@pytest.mark.parametrize(("num_samples", "least"), [(2, 80), pytest.param(40, 150, marks=pytest.mark.slow)])
def test_kept_lists_packs_and_fields_are_what_was_written_last_and_no_half_of_one_stays(
    quick_path: Path, num_samples: int, least: int
) -> None:
    """Traps 24 and 25: a list that is torn would let go of what somebody has pinned."""
    check_every_state(quick_path / "after", recorded(quick_path / "run"), complaints, num_samples, least)


def without_names(operation: Operation) -> Operation | None:
    return None if isinstance(operation, SyncDir) and operation.path in PLACES else operation


def without_names_of_directories(operation: Operation) -> Operation | None:
    return None if isinstance(operation, SyncDir) and operation.path == "." else operation


@pytest.mark.parametrize("forget", [without_syncs, without_names, without_names_of_directories])
def test_one_sort_of_sync_left_out_of_small_files_is_found(quick_path: Path, forget: Forget) -> None:
    assert is_any_state_wrong(quick_path / "after", recorded(quick_path / "run"), complaints, forget)


def recorded_damage(place: Path) -> Recorded:
    """Set a damaged block aside, and collect garbage."""
    store = open_store(place)
    for block in BLOCKS:
        store.write([(block.header, block.payload)])
    store.close()
    flip(path_of(place, BLOCKS[-1]))
    base = Tree.of(place)
    files = RecordingFiles(place)
    store = open_store(place, files=files)
    with suppress(BlockDamaged):
        read(store, BLOCKS[-1])
    store.close()
    admin = CacheAdmin(place, files=files)
    admin.collect(lambda _: True)
    files.note("gone", BLOCKS[-1].key)
    admin.close()
    return base, files.operations


def complaints_of_damage(place: Path, called: Sequence[Operation]) -> list[str]:
    """Return whether a damaged block serves anybody, stays after a collection, or takes others with it."""
    is_gone = any(isinstance(operation, Note) for operation in called)
    found = ["what was collected is there again"] if is_gone and any(places_of_damage(place)) else []
    store = open_store(place, files=AnotherBoot())
    with suppress(BlockDamaged, BlockMissing):
        read(store, BLOCKS[-1])
        found.append("a damaged block was read")
    found += [f"{block.key.hex()} is gone" for block in BLOCKS[:-1] if not store.has(block.key, FULL)]
    store.close()
    admin = CacheAdmin(place, files=AnotherBoot())
    admin.collect(lambda _: True)
    admin.close()
    return found + [f"{path} is left" for path in places_of_damage(place)]


def places_of_damage(place: Path) -> list[Path]:
    return [path for path in place.rglob(f"*{BLOCKS[-1].key.hex()}*") if path.is_file()]


@pytest.mark.parametrize(("num_samples", "least"), [(2, 15), pytest.param(40, 24, marks=pytest.mark.slow)])
def test_a_damaged_block_serves_nobody_and_goes_with_the_next_collection(
    quick_path: Path, num_samples: int, least: int
) -> None:
    recording = recorded_damage(quick_path / "run")
    check_every_state(quick_path / "after", recording, complaints_of_damage, num_samples, least)
