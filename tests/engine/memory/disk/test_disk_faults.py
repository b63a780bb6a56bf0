"""Damage, crashes and full disks cost time; they never change what a block holds."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvchat.engine.api.ids import u32le
from kvchat.engine.memory.disk.quarantine import MAX_QUARANTINED
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import BlockDamaged, BlockMissing
from tests.damage import flipped
from tests.engine.memory.chains import (
    BLOCK_SIZE,
    FINGERPRINT,
    FULL,
    OTHER_FINGERPRINT,
    SLIDING,
    Block,
    chain,
    check_totals,
    open_store,
    path_of,
    put_blocks,
    read,
    write_all,
)
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[4]


def test_every_flipped_byte_every_truncation_and_an_addition_is_noticed(
    tmp_path: Path, store: DiskStore
) -> None:
    """Traps 6 and 24: the checksum covers the description as well as the payload."""
    (block,) = chain([1, 2, 3, 4])
    write_all(store, [block])
    path = path_of(tmp_path, block)
    whole = path.read_bytes()
    flips = (flipped(whole, at, 1 << at % 8) for at in range(len(whole)))
    cuts = (whole[:length] for length in range(len(whole)))
    for damaged in (*flips, *cuts, whole + b"\x00"):
        path.write_bytes(damaged)
        with pytest.raises(BlockDamaged):
            read(store, block)
        assert not path.exists()
    path.write_bytes(whole)
    assert read(store, block) == block.payload


@pytest.mark.parametrize("theirs", [chain([5, 6, 7, 8])[0], chain([1, 2, 3, 4], SLIDING)[0]])
def test_the_file_of_another_block_or_group_under_this_name_is_refused(
    tmp_path: Path, store: DiskStore, theirs: Block
) -> None:
    """Traps 4 and 28: right format, right checksum, another conversation."""
    (ours,) = chain([1, 2, 3, 4])
    write_all(store, [ours, theirs])
    path_of(tmp_path, theirs).replace(path_of(tmp_path, ours))
    with pytest.raises(BlockDamaged):
        read(store, ours)
    assert not store.has(ours.key, FULL)


def test_the_file_of_another_model_is_refused(tmp_path: Path, store: DiskStore) -> None:
    """Trap 1: same ids, same shape, other weights."""
    (ours,) = chain([1, 2, 3, 4])
    put_blocks(tmp_path, [ours], OTHER_FINGERPRINT)
    target = path_of(tmp_path, ours)
    target.parent.mkdir(parents=True)
    path_of(tmp_path, ours, OTHER_FINGERPRINT).replace(target)
    store.rebuild()
    assert not store.has(ours.key, FULL)
    with pytest.raises(BlockMissing):
        read(store, ours)


@pytest.mark.parametrize(
    "content",
    [
        (2**64 - 1).to_bytes(8, "little") + b"{}",
        (2**62).to_bytes(8, "little") + b"[" * 4096,
        (4096).to_bytes(8, "little") + b"[" * 4096,
        (30).to_bytes(8, "little") + b'{"__metadata__":{"format":"x"}}',
        (2).to_bytes(8, "little") + b"{}",
        (4).to_bytes(8, "little") + b"null",
        b"\x00" * 8,
        b"",
    ],
)
def test_a_hostile_header_is_set_aside_and_never_believed(tmp_path: Path, content: bytes) -> None:
    (block,) = chain([1, 2, 3, 4])
    path = path_of(tmp_path, block)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    store = open_store(tmp_path)
    assert not store.has(block.key, FULL)
    assert not path.exists()
    assert store.usage().num_blocks == 0
    assert store.write([(block.header, block.payload)])


def test_a_file_whose_ids_are_not_those_of_its_key_is_not_found_again(tmp_path: Path) -> None:
    """Trap 4: what a file says of itself is recomputed, not believed."""
    (block,) = chain([1, 2, 3, 4])
    put_blocks(tmp_path, [block])
    path = path_of(tmp_path, block)
    token_ids, forged_ids = u32le([1, 2, 3, 4]).hex().encode(), u32le([1, 2, 3, 5]).hex().encode()
    path.write_bytes(path.read_bytes().replace(token_ids, forged_ids))
    (tmp_path / "index.db").unlink()
    store = open_store(tmp_path)
    assert store._index.blocks() == []
    assert not path.exists()


def test_what_is_no_file_is_neither_followed_nor_waited_for(tmp_path: Path, store: DiskStore) -> None:
    linked, piped, directory = (chain([start, 0, 0, 0])[0] for start in range(3))
    write_all(store, [linked, piped, directory])
    path_of(tmp_path, linked).rename(tmp_path / "elsewhere")
    path_of(tmp_path, linked).symlink_to(tmp_path / "elsewhere")
    path_of(tmp_path, piped).unlink()
    os.mkfifo(path_of(tmp_path, piped))
    path_of(tmp_path, directory).unlink()
    path_of(tmp_path, directory).mkdir()
    for block in (linked, piped, directory):
        with pytest.raises(BlockDamaged):
            read(store, block)
        assert store.write([(block.header, block.payload)])
        assert read(store, block) == block.payload


def test_damaged_files_are_set_aside_and_only_the_newest_are_kept(tmp_path: Path, store: DiskStore) -> None:
    """Trap 25: nothing may fill the disk, not even evidence."""
    blocks = chain(list(range(BLOCK_SIZE * (MAX_QUARANTINED + 5))))
    write_all(store, blocks)
    for block in blocks:
        path_of(tmp_path, block).write_bytes(b"damaged")
        with pytest.raises(BlockDamaged):
            read(store, block)
    aside = sorted(path.name for path in (tmp_path / "quarantine").iterdir())
    assert len(aside) == MAX_QUARANTINED
    assert f"{FINGERPRINT.hex()[:16]}.{path_of(tmp_path, blocks[-1]).name}" in aside
    assert store.usage().num_blocks == 0


def test_temporary_files_of_a_crash_are_removed_when_the_store_opens(tmp_path: Path) -> None:
    """Trap 25: those of the living stay, whatever the clock says."""
    (block,) = chain([1, 2, 3, 4])
    script = """
import os, sys
from pathlib import Path
from tests.engine.memory.chains import *
from kvchat.engine.memory.disk.io import SystemFiles
class Dies(SystemFiles):
    def rename(self, source, target):
        os.kill(os.getpid(), 9)
store = open_store(Path(sys.argv[1]), files=Dies())
write_all(store, chain([1, 2, 3, 4]))
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, timeout=PATIENCE_S).returncode == -signal.SIGKILL
    (of_dead,) = tmp_path.rglob("*.tmp")
    living = open_store(tmp_path)
    assert not of_dead.exists()
    assert living.usage().num_blocks == 0
    write_all(living, [block])
    (lock,) = (path for path in (tmp_path / "writers").iterdir() if path.stem not in of_dead.name)
    of_living = of_dead.with_name(of_dead.name.replace(of_dead.name.split(".")[-2], lock.stem))
    of_living.write_bytes(b"half a block")
    os.utime(of_living, (time.time() - 10 * 365 * 86400,) * 2)
    other = open_store(tmp_path)
    other.rebuild()
    assert of_living.exists()


@pytest.mark.parametrize("limit_bytes", [None, 9000])
def test_processes_that_open_write_and_evict_at_once_do_not_disturb_each_other(
    tmp_path: Path, limit_bytes: int | None
) -> None:
    script = f"""
import sys
from pathlib import Path
from kvchat.errors import BlockMissing
from tests.engine.memory.chains import *
print("ready", flush=True)
sys.stdin.readline()
for start in range(0, 120, 40):
    store = open_store(Path(sys.argv[1]), limit_bytes={limit_bytes})
    for block in chain(list(range(start, start + 40))):
        store.write([(block.header, block.payload)])
        try:
            assert read(store, block) == block.payload
        except BlockMissing:
            assert {limit_bytes is not None}
    store.close()
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    complaints = [process.communicate(timeout=PATIENCE_S)[1].decode() for process in processes]
    assert complaints == [""] * 3
    store = open_store(tmp_path)
    check_totals(tmp_path, store.usage())
