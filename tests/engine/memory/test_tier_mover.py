"""Moves are carried out in order and to the bit; a block that fails once is not offered again."""

import errno
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic

import pytest
import torch

from kvchat.engine.api.ids import BlockId, GroupId, block_key, root_key
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_operations import Copy, Demote, Load, Promote
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.sliding.spec import SlidingSpec
from kvchat.engine.formats.spec import Group
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.disk.block_file import BlockHeader, block_path
from kvchat.engine.memory.disk.io import SYSTEM, SystemFiles
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.engine.memory.host_copies import Transport
from kvchat.engine.memory.host_pool import HostPool
from kvchat.engine.memory.rates import Direction, Rates
from kvchat.engine.memory.tier_mover import REFUSED_S, TierMover
from kvchat.errors import OutOfMemory
from tests.damage import flipped
from tests.engine.memory.chains import FINGERPRINT
from tests.hand_clock import HandClock

pytestmark = pytest.mark.cpu

BLOCK_SIZE = 4
FULL, SLIDING = GroupId(0), GroupId(1)
ROOT = root_key(FINGERPRINT)
IDS = (1, 2, 3, 4)
KEY = block_key(ROOT, IDS)


@pytest.fixture
def pool() -> DevicePool:
    full = FullSpec(num_kv_heads=2, head_dim_k=3, head_dim_v=4, dtype="BF16")
    sliding = SlidingSpec(num_kv_heads=2, head_dim_k=3, head_dim_v=3, dtype="BF16", window_len=5)
    groups = [Group(id=FULL, spec=full, layers=(0, 1)), Group(id=SLIDING, spec=sliding, layers=(2,))]
    pool = DevicePool(groups, {FULL: 4, SLIDING: 4}, BLOCK_SIZE, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for layer in pool.layers.values():
        layer.keys.copy_(torch.randn(layer.keys.shape, generator=generator))
        layer.values.copy_(torch.randn(layer.values.shape, generator=generator))
    return pool


class WatchedFiles(SystemFiles):
    """Files whose blocks are read in one run."""

    gives_descriptors = False


@pytest.fixture(params=[SYSTEM, WatchedFiles()], ids=["into the pool", "in one run"])
def store(pool: DevicePool, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DiskStore]:
    with closing(store_of(pool, tmp_path, request.param)) as store:
        yield store


def store_of(pool: DevicePool, cache_dir: Path, files: SystemFiles) -> DiskStore:
    return DiskStore(
        cache_dir,
        fingerprint=FINGERPRINT,
        layouts=pool.layouts(),
        block_size=pool.block_size,
        limit_bytes=None,
        files=files,
    )


def save(pool: DevicePool, store: DiskStore, group: GroupId, block: int) -> bytes:
    data = pool.read_block(group, BlockId(block), BLOCK_SIZE)
    store.write([(BlockHeader.of(group, ROOT, IDS), data)])
    return data


def mover_of(
    pool: DevicePool, store: DiskStore | None, num_places: int = 0, clock: Callable[[], float] = monotonic
) -> TierMover:
    host = HostPool({FULL: num_places}, {FULL: pool.block_bytes(FULL)})
    return TierMover(pool, store, Transport(pool, host, Rates()), clock)


def load_into(block: int, group: GroupId = FULL) -> Load:
    return Load(group, KEY, ROOT, IDS, BlockId(block))


def read(pool: DevicePool, group: GroupId, block: int) -> bytes:
    return pool.read_block(group, BlockId(block), BLOCK_SIZE)


@pytest.mark.parametrize("group", [FULL, SLIDING])
def test_a_load_brings_back_every_bit(pool: DevicePool, store: DiskStore, group: GroupId) -> None:
    data = save(pool, store, group, 0)
    assert read(pool, group, 3) != data
    assert mover_of(pool, store).fetch(load_into(3, group))
    assert read(pool, group, 3) == data


def test_moves_happen_in_their_order(pool: DevicePool, store: DiskStore) -> None:
    """Trap 21: what is copied can be overwritten in the same plan, and what was overwritten copied on."""
    first, other = read(pool, FULL, 0), read(pool, FULL, 2)
    moves = [
        Copy(FULL, BlockId(0), BlockId(1), BLOCK_SIZE),
        Demote(FULL, BlockId(2), BlockId(0)),
        Copy(FULL, BlockId(1), BlockId(2), BLOCK_SIZE),
        Copy(FULL, BlockId(3), BlockId(0), BLOCK_SIZE),
    ]
    mover = mover_of(pool, store, 1)
    mover.execute(moves)
    assert read(pool, FULL, 1) == read(pool, FULL, 2) == first
    assert read(pool, FULL, 0) == read(pool, FULL, 3)
    assert mover.fetch(Promote(FULL, BlockId(0), BlockId(3)))
    assert read(pool, FULL, 3) == other


def test_a_load_that_fails_is_not_offered_again(pool: DevicePool, store: DiskStore, tmp_path: Path) -> None:
    """Trap 22: look-up says yes, load says no; the same request must not run into it for ever."""
    save(pool, store, FULL, 0)
    save(pool, store, SLIDING, 0)
    path = block_path(tmp_path / "blocks", FINGERPRINT, KEY, FULL)
    damaged = flipped(path.read_bytes(), -1)
    mover = mover_of(pool, store)
    assert list(mover.has_all([KEY], FULL)) == [True]
    path.write_bytes(damaged)
    assert not mover.fetch(load_into(3))

    path.write_bytes(damaged)  # as if it came back: this process has seen enough of it
    store.rebuild()
    assert list(mover.has_all([KEY], FULL)) == [False]
    assert list(mover.has_all([KEY], SLIDING)) == [True]
    assert [node.key for node in mover.nearest(ROOT, (), 9)] == []


def test_a_load_that_was_refused_in_passing_is_offered_again_later(pool: DevicePool, tmp_path: Path) -> None:
    class NoDescriptors(WatchedFiles):
        is_refusing = False

        def open(self, path: Path) -> int:
            if self.is_refusing:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().open(path)

    files, clock = NoDescriptors(), HandClock()
    store = store_of(pool, tmp_path, files)
    data = save(pool, store, FULL, 0)
    mover = mover_of(pool, store, clock=clock)
    files.is_refusing = True
    assert not mover.fetch(load_into(3))
    files.is_refusing = False
    assert list(mover.has_all([KEY], FULL)) == [False]
    assert [node.key for node in mover.nearest(ROOT, (), 9)] == []
    clock.now_s += REFUSED_S
    assert list(mover.has_all([KEY], FULL)) == [True]
    assert [node.key for node in mover.nearest(ROOT, (), 9)] == [KEY]
    assert mover.fetch(load_into(3))
    assert read(pool, FULL, 3) == data
    store.close()


def test_what_demotions_take_is_measured_and_copies_count_for_nothing(pool: DevicePool) -> None:
    class Notes(Rates):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[tuple[Tier, Direction, int]] = []

        def observe_move(self, tier: Tier, direction: Direction, num_bytes: int, seconds: float) -> None:
            assert seconds > 0
            self.seen.append((tier, direction, num_bytes))

    size, rates = pool.block_bytes(FULL), Notes()
    moves = [Demote(FULL, BlockId(1), BlockId(0)), Copy(FULL, BlockId(0), BlockId(1), 2)]
    Transport(pool, HostPool({FULL: 1}, {FULL: size}), rates).execute(moves)
    assert rates.seen == [(Tier.HOST, Direction.STORE, size)]


def test_memory_that_is_not_to_be_had_is_said_with_what_to_do() -> None:
    with pytest.raises(OutOfMemory, match="--kv-host-bytes"):
        HostPool({FULL: 1 << 40}, {FULL: 1 << 30})
