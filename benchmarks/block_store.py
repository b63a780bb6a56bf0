"""A stored conversation without its model: pools, store and reader as in an engine."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from kvchat.engine.api.ids import BlockId, BlockKey, chain_keys, root_key
from kvchat.engine.cache.block_operations import Move
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.host_tier import HostTier
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.cache.prefix_index import IndexNode
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.spec import CacheSpec, Group, group_layers
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.disk.store import BlockHeader, DiskStore
from kvchat.engine.memory.host_copies import Transport
from kvchat.engine.memory.host_pool import HostPool
from kvchat.engine.memory.rates import Rates
from kvchat.engine.memory.reader import Reader
from kvchat.engine.memory.tier_mover import TierMover
from kvchat.engine.tiering.in_flight_loads import InFlightLoads

BLOCK_SIZE = 64
NUM_BLOCKS = 64
FINGERPRINT = bytes(32)
PATIENCE_S = 60.0

SPEC = FullSpec(num_kv_heads=5, head_dim_k=64, head_dim_v=64, dtype="BF16")
SHAPE_360M = dict.fromkeys(range(32), SPEC)


class StoredBlocks:
    """A conversation of 4,096 tokens on disk, and a device pool that is large enough for it.

    Args:
        specs: of each layer; the first group keeps every token, and others the state behind the last.
    """

    def __init__(self, directory: Path, specs: Mapping[int, CacheSpec] = SHAPE_360M) -> None:
        self.groups: tuple[Group, ...] = group_layers(specs)
        self.group = self.groups[0]
        self.num_blocks = {group.id: 3 if group.is_state else NUM_BLOCKS + 1 for group in self.groups}
        self.pool = self.new_pool()
        self.block_bytes = self.group.block_bytes(BLOCK_SIZE)
        self.token_ids = [5 + 11 * index % 2500 for index in range(NUM_BLOCKS * BLOCK_SIZE + 1)]
        self.keys = chain_keys(root_key(FINGERPRINT), self.token_ids[:-1], BLOCK_SIZE)
        self.directory = directory
        self.plain = directory / "plain"
        self.store = DiskStore(
            directory / "cache",
            fingerprint=FINGERPRINT,
            layouts=self.pool.layouts(),
            block_size=BLOCK_SIZE,
            limit_bytes=None,
        )
        self.num_bytes = self._fill()

    def new_pool(self) -> DevicePool:
        """Return a pool of which no page was ever written, as a process has that has just started."""
        return DevicePool(self.groups, self.num_blocks, BLOCK_SIZE, torch.device("cpu"))

    def resume(
        self, host: HostPool | None = None, host_tier: HostTier | None = None, pool: DevicePool | None = None
    ) -> None:
        """Bring the conversation to an empty device pool, as the engine does for a request.

        Args:
            pool: None: the one that was resumed into before.
        """
        tier = DeviceTier(self.groups, self.num_blocks, block_size=BLOCK_SIZE, host=host_tier)
        pool = pool or self.pool
        mover = TierMover(pool, self.store, Transport(pool, host or HostPool({}, {}), Rates()))
        manager = CacheManager(tier, fingerprint=FINGERPRINT, slow=mover)
        reader = Reader(mover.fetch, max_bytes=2**40, read_ahead=mover.read_ahead)

        def carry_out(moves: Iterable[Move]) -> None:
            mover.execute(moves)
            manager.device.finish_moves()

        flights = InFlightLoads(tier, reader, Rates(), carry_out)
        branch = manager.open("", self.token_ids)
        match = manager.match(branch)
        assert match.length == len(self.token_ids) - 1
        flight = flights.begin(match, branch.root)
        assert flight is not None
        while not flight.is_over:
            flights.wait(PATIENCE_S)
            flights.collect()
        assert flight.is_complete
        flights.close()

    def in_host_memory(self) -> tuple[HostPool, HostTier]:
        """Return a host tier that has the conversation."""
        tier = HostTier(self.groups, self.num_blocks)
        pool = HostPool(self.num_blocks, {self.group.id: self.block_bytes})
        for number, key in enumerate(self.keys):
            start = number * BLOCK_SIZE
            ids = tuple(self.token_ids[start : start + BLOCK_SIZE])
            place = tier.reserve(IndexNode(key, self._parent(number), ids, start), self.group.id)
            assert place is not None
            self.pool.read_into(self.group.id, BlockId(number), pool.view(self.group.id, place))
        tier.finish_moves()
        return pool, tier

    @property
    def files(self) -> list[Path]:
        """The store's, and the one for plain reading."""
        return [self.plain, *(self.directory / "cache" / "blocks").rglob("*.safetensors")]

    def read_plain(self, out: memoryview) -> None:
        """Read the same number of bytes from one file, from its start to its end."""
        with self.plain.open("rb", buffering=0) as file:
            done = 0
            while done < len(out):
                done += file.readinto(out[done:]) or 0

    def blocks(self) -> Iterator[tuple[BlockHeader, bytearray]]:
        """Yield what is stored, random bytes, each with its name."""
        last = len(self.keys) - 1
        for group in self.groups:
            for number in [last] if group.is_state else range(len(self.keys)):
                payload = bytearray(os.urandom(self.pool.block_bytes(group.id)))
                ids = self.token_ids[number * BLOCK_SIZE : (number + 1) * BLOCK_SIZE]
                yield BlockHeader.of(group.id, self._parent(number), ids), payload

    def _fill(self) -> int:
        num_bytes = 0
        with self.plain.open("wb") as file:
            for header, payload in self.blocks():
                self.store.write([(header, payload)])
                num_bytes += file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        return num_bytes

    def _parent(self, number: int) -> BlockKey:
        return self.keys[number - 1] if number else root_key(FINGERPRINT)


def forget(files: Iterable[Path]) -> None:
    """Drop files from the system's page cache."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@contextmanager
def block_store(specs: Mapping[int, CacheSpec] = SHAPE_360M) -> Iterator[StoredBlocks]:
    with TemporaryDirectory() as directory:
        made = StoredBlocks(Path(directory), specs)
        yield made
        made.store.close()
