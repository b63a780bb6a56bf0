"""Small chains of blocks and the stores they go to."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from weakref import WeakSet

from kvchat.engine.api.ids import BlockKey, GroupId, root_key
from kvchat.engine.memory.disk.block_file import Layout, Region
from kvchat.engine.memory.disk.index import DiskUsage
from kvchat.engine.memory.disk.io import SystemFiles
from kvchat.engine.memory.disk.store import BlockHeader, DiskStore
from kvchat.errors import BlockDamaged, BlockMissing
from tests.hand_clock import HandClock

FULL, SLIDING = GroupId(0), GroupId(1)
BLOCK_SIZE = 4
FINGERPRINT = b"\x01" * 32
OTHER_FINGERPRINT = b"\x02" * 32
LAYOUTS: dict[GroupId, Layout] = {
    FULL: (
        Region(name="layers.0.k", dtype="F32", shape=(2, BLOCK_SIZE, 2)),
        Region(name="layers.0.v", dtype="F32", shape=(2, BLOCK_SIZE, 3)),
    ),
    SLIDING: (Region(name="layers.1.k", dtype="BF16", shape=(1, BLOCK_SIZE, 2)),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    header: BlockHeader
    payload: bytes

    @property
    def key(self) -> BlockKey:
        return self.header.key


class Copied:
    """A payload that is off the device already."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    def __len__(self) -> int:
        return len(self._payload)

    def wait(self) -> bytes:
        return self._payload

    def release(self) -> None:
        pass


class HastyFiles(SystemFiles):
    """Waits for no medium: nothing here is about a loss of power."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_dir(self, path: Path) -> None:
        pass


HASTY = HastyFiles()
OPENED: WeakSet[DiskStore] = WeakSet()


def open_store(
    cache_dir: Path,
    fingerprint: bytes = FINGERPRINT,
    limit_bytes: int | None = None,
    clock: Callable[[], float] | None = None,
    files: SystemFiles = HASTY,
    **settings: Any,
) -> DiskStore:
    """Open a store, which fixtures of the tests close in the end."""
    store = DiskStore(
        cache_dir,
        fingerprint=fingerprint,
        layouts=LAYOUTS,
        block_size=BLOCK_SIZE,
        limit_bytes=limit_bytes,
        clock=clock or HandClock(),
        files=files,
        **settings,
    )
    OPENED.add(store)
    return store


def payload_of(key: BlockKey, group: GroupId = FULL) -> bytes:
    """Return bytes that follow from the key, so that any process can say what a block must hold."""
    num_bytes = sum(region.nbytes for region in LAYOUTS[group])
    return Random(key).randbytes(num_bytes)


def block_behind(parent: BlockKey, token_ids: list[int], group: GroupId = FULL) -> Block:
    header = BlockHeader.of(group, parent, token_ids)
    return Block(header=header, payload=payload_of(header.key, group))


def chain(
    token_ids: list[int], group: GroupId = FULL, fingerprint: bytes = FINGERPRINT, namespace: str = ""
) -> list[Block]:
    """Return the blocks of a conversation, its tail last if the ids do not fill it."""
    parent = root_key(fingerprint, namespace)
    blocks = []
    for start in range(0, len(token_ids), BLOCK_SIZE):
        blocks.append(block_behind(parent, token_ids[start : start + BLOCK_SIZE], group))
        parent = blocks[-1].key
    return blocks


def write_all(store: DiskStore, blocks: list[Block]) -> None:
    for block in blocks:
        assert store.write([(block.header, block.payload)])


def put_blocks(cache_dir: Path, blocks: list[Block], fingerprint: bytes = FINGERPRINT) -> int:
    """Write blocks through a store of their own; return the bytes that lie in the directory then."""
    with closing(open_store(cache_dir, fingerprint)) as store:
        write_all(store, blocks)
        return store.total_usage().num_bytes


def read(store: DiskStore, block: Block) -> bytes:
    return bytes(store.read(block.header))


def read_if_whole(store: DiskStore, block: Block) -> bytes | None:
    try:
        return read(store, block)
    except (BlockMissing, BlockDamaged):
        return None


def check_totals(cache_dir: Path, usage: DiskUsage) -> None:
    """Assert that the files of blocks are those that are accounted for."""
    sizes = [path.stat().st_size for path in (cache_dir / "blocks").rglob("*.*")]
    assert (usage.num_blocks, usage.num_bytes) == (len(sizes), sum(sizes))


def path_of(cache_dir: Path, block: Block, fingerprint: bytes = FINGERPRINT) -> Path:
    name = f"{block.key.hex()}.{block.header.group}.safetensors"
    return cache_dir / "blocks" / fingerprint.hex() / name[:2] / name


def lose_row(store: DiskStore, cache_dir: Path, block: Block) -> None:
    """Leave a file without a row: no row goes while its file is there."""
    path = path_of(cache_dir, block)
    aside = path.rename(cache_dir / "aside")
    store._index.drop([(FINGERPRINT, block.key, block.header.group)])
    aside.rename(path)


TREE = {
    tuple(path): chain([step * 10 + place for step in path for place in range(BLOCK_SIZE)])[-1]
    for path in ([a, *rest] for a in range(4) for rest in ([], [0], [1], [0, 0], [0, 1], [1, 0]))
}
"""Blocks of conversations that share beginnings, by the steps that lead to each."""
