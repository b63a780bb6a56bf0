"""Starting with a store of 100,000 blocks, and what 1,000 sessions that share a prompt keep; no model."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from benchmarks.bookkeeping import BLOCK_SIZE
from benchmarks.table import Row, seconds
from kvchat.engine.api.ids import BlockKey, GroupId, root_key
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.spec import Group
from kvchat.engine.memory.disk.block_encryption import DiskKey
from kvchat.engine.memory.disk.block_file import (
    BlockForm,
    BlockHeader,
    FileIdentity,
    FoundBlock,
    Layout,
    Region,
    block_path,
    render_head,
)
from kvchat.engine.memory.disk.index import BlockIndex
from kvchat.engine.memory.disk.io import SystemFiles
from kvchat.engine.memory.disk.store import DiskStore

NUM_SESSIONS = 1_000
SHARED_LEN = 1_000
NUM_BLOCKS = 100_000
CHAIN_LEN = 100
ROUNDS = 7
FINGERPRINT = b"\x05" * 32
GROUP = GroupId(0)
LAYOUTS: dict[GroupId, Layout] = {GROUP: (Region(name="layers.0.k", dtype="U8", shape=(BLOCK_SIZE,)),)}
FORM = BlockForm(fingerprint=FINGERPRINT, block_size=BLOCK_SIZE, layout=LAYOUTS[GROUP])


class UnsyncedFiles(SystemFiles):
    """Building a store is not what is measured, so nothing waits for the medium."""

    def sync(self, descriptor: int) -> None: ...

    def sync_dir(self, path: Path) -> None: ...


def measure() -> list[Row]:
    with TemporaryDirectory(prefix="kvchat-bench-") as directory:
        cache_dir = Path(directory) / "cache"
        rows = [sharing_row(Path(directory) / "shared")]
        keys = _build(cache_dir)
        rows += _start_rows(cache_dir, keys)
        rows += _process_rows(Path(directory))
        rows += _crash_row(cache_dir)
        return [*rows, memory_row()]


def open_store(cache_dir: Path, limit_bytes: int | None = None) -> DiskStore:
    return DiskStore(
        cache_dir,
        fingerprint=FINGERPRINT,
        layouts=LAYOUTS,
        block_size=BLOCK_SIZE,
        limit_bytes=limit_bytes,
        files=UnsyncedFiles(),
    )


def prompts(num_sessions: int) -> list[list[int]]:
    """Return the token ids of sessions that begin alike."""
    random = Random(0)
    shared = [random.randrange(32_000) for _ in range(SHARED_LEN)]
    return [
        [*shared, number, *(random.randrange(32_000) for _ in range(62))] for number in range(num_sessions)
    ]


def save(store: DiskStore, token_ids: list[int]) -> list[BlockKey]:
    """Write the full blocks of a session that are not there, and return all their keys."""
    parent, keys = root_key(FINGERPRINT), []
    for start in range(0, len(token_ids) - BLOCK_SIZE + 1, BLOCK_SIZE):
        ids = token_ids[start : start + BLOCK_SIZE]
        header = BlockHeader.of(GROUP, parent, ids)
        store.write([(header, bytes(BLOCK_SIZE))])
        keys.append(header.key)
        parent = header.key
    return keys


def _build(cache_dir: Path) -> list[BlockKey]:
    """Lay out 100,000 blocks as the store would, without its transaction per block; return one chain."""
    open_store(cache_dir).close()
    num_blocks = NUM_BLOCKS
    index = BlockIndex(cache_dir / "index.db", UnsyncedFiles(), lambda _: True)
    random = Random(1)
    keys: list[BlockKey] = []
    while num_blocks:
        parent, found, keys = root_key(FINGERPRINT, str(num_blocks)), [], []
        for _ in range(min(num_blocks, CHAIN_LEN)):
            ids = tuple(random.randrange(32_000) for _ in range(BLOCK_SIZE))
            header = BlockHeader.of(GROUP, parent, ids)
            found.append(_put(cache_dir / "blocks", header))
            keys.append(header.key)
            parent = header.key
        index.add(found)
        num_blocks -= len(found)
    index.close()
    return keys


def _put(blocks_dir: Path, header: BlockHeader) -> FoundBlock:
    identity = FileIdentity(form=FORM, header=header)
    payload = bytes(BLOCK_SIZE)
    data = render_head(identity, memoryview(payload)) + payload
    path = block_path(blocks_dir, FINGERPRINT, DiskKey(header.key), GROUP)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return FoundBlock(
        fingerprint=FINGERPRINT,
        header=header,
        block_size=BLOCK_SIZE,
        num_bytes=len(data),
        modified_s=float(len(data)),
    )


def sharing_row(cache_dir: Path, num_sessions: int = NUM_SESSIONS) -> Row:
    """Return how many blocks of the sessions' prompts are on disk more than once."""
    store = open_store(cache_dir)
    for prompt in prompts(num_sessions):
        save(store, prompt)
    twice = store.usage().num_blocks - num_sessions - SHARED_LEN // BLOCK_SIZE
    store.close()
    note = f"{num_sessions:,} sessions, {SHARED_LEN // BLOCK_SIZE} full blocks of the prompt in common"
    return Row.of("disk blocks that they keep more than once", "blocks", [float(twice)], note)


def _start_rows(cache_dir: Path, keys: list[BlockKey]) -> list[Row]:
    store = open_store(cache_dir)
    usage = store.usage()
    asked = [seconds(lambda: store.has_all(keys, GROUP)) * 1e3 for _ in range(ROUNDS)]
    rebuilt = seconds(store.rebuild)
    store.close()

    def open_and_close() -> None:
        open_store(cache_dir, limit_bytes=usage.num_bytes).close()

    opened = [seconds(open_and_close) * 1e3 for _ in range(ROUNDS)]
    note = f"bound 300 ms; looking at every file takes {rebuilt:.1f} s"
    return [
        Row.of(f"open and close a store of {usage.num_blocks:,} blocks", "ms", opened, note),
        Row.of(f"ask for a chain of {len(keys)} blocks in it", "ms", asked),
    ]


def _process_rows(home: Path) -> list[Row]:
    """Processor time of whole processes of a cheap command, beside one on an empty home."""

    def command(place: Path) -> list[float]:
        return [_processor_seconds(place) * 1e3 for _ in range(ROUNDS)]

    with TemporaryDirectory(prefix="kvchat-bench-") as empty:
        on_empty = command(Path(empty))
    on_full = command(home)
    added = [full - nothing for full, nothing in zip(sorted(on_full), sorted(on_empty), strict=True)]
    return [
        Row.of("`kvchat cache status`, empty home", "ms cpu", on_empty),
        Row.of("`kvchat cache status`, this store", "ms cpu", on_full),
        Row.of("  what the store adds", "ms cpu", added, "bound 300 ms"),
    ]


def _processor_seconds(home: Path) -> float:
    """Return what one command costs; not how long it takes, which is what else the machine does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "kvchat", "cache", "status"],
        env=os.environ | {"KVCHAT_HOME": str(home)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _crash_row(cache_dir: Path) -> list[Row]:
    """Open after a process was killed in the middle of a write."""
    times = []
    for number in range(ROUNDS):
        child = os.fork()
        if child == 0:
            _die_while_writing(cache_dir, number)
        os.waitpid(child, 0)
        times.append(seconds(lambda: open_store(cache_dir).close()) * 1e3)
    return [Row.of("open it after a killed writer", "ms", times, "bound 300 ms")]


def _die_while_writing(cache_dir: Path, number: int) -> None:
    class Deadly(UnsyncedFiles):
        def rename(self, source: Path, target: Path) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    store = DiskStore(
        cache_dir,
        fingerprint=FINGERPRINT,
        layouts=LAYOUTS,
        block_size=BLOCK_SIZE,
        limit_bytes=None,
        files=Deadly(),
    )
    save(store, [1_000_000 + number] * BLOCK_SIZE)


def memory_row(num_sessions: int = NUM_SESSIONS) -> Row:
    """What the same sessions hold on the device, all at the same time."""
    spec = FullSpec(num_kv_heads=1, head_dim_k=2, head_dim_v=2, dtype="F32")
    num_blocks = SHARED_LEN // BLOCK_SIZE + 2 * num_sessions + 8
    tier = DeviceTier((Group(id=GROUP, spec=spec, layers=(0,)),), {GROUP: num_blocks}, block_size=BLOCK_SIZE)
    manager = CacheManager(tier, fingerprint=FINGERPRINT)
    for token_ids in prompts(num_sessions):
        branch = manager.open("", token_ids)
        assert manager.admit(branch, manager.match(branch)) is not None
        manager.device.finish_moves()
        num_left = len(token_ids) - branch.computed_len
        assert manager.extend(branch, num_left) is not None
        manager.device.finish_moves()
        manager.commit(branch, num_left)
    pool = manager.device.pools[GROUP]
    own = num_sessions * (-(-(SHARED_LEN + 63) // BLOCK_SIZE) - SHARED_LEN // BLOCK_SIZE)
    twice = pool.num_used - own - SHARED_LEN // BLOCK_SIZE
    return Row.of("device blocks that they hold more than once", "blocks", [float(twice)])
