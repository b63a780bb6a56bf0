"""What stays cached under pressure: scan-resistant orders beside the least recently used, on chat traffic.

Sessions share one of a few system prompts and come back by Zipf's law, each turn a few blocks longer; some
requests read a long document once. A pool of blocks is filled as an engine fills it: what a request needs is
held while it runs, and let go from the last block to the first. Counted are the blocks of chat prompts that
were found as a usable prefix. The bound is a pool that holds everything.

The disk is asked for less of the same traffic, and for a scan: sessions that are used three times, and then
one document of ten times its room. Its index and its files are real; nothing waits for a medium.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.table import Row
from kvchat.engine.api.ids import BlockId, BlockKey, GroupId, root_key
from kvchat.engine.cache.block_pool import BlockPool
from kvchat.engine.cache.eviction import Eviction, make_order
from kvchat.engine.memory.disk.block_file import Region
from kvchat.engine.memory.disk.io import SystemFiles
from kvchat.engine.memory.disk.store import BlockHeader, DiskStore

SEEDS = range(5)
NUM_REQUESTS = 3000
NUM_SESSIONS = 60
NUM_SYSTEM_PROMPTS = 5
SYSTEM_BLOCKS = 6
MAX_SESSION_BLOCKS = 40
DOCUMENT_BLOCKS = 80
DOCUMENT_SHARE = 0.15
CAPACITIES = (200, 400, 800)
DISK_SEEDS, DISK_REQUESTS, DISK_BLOCKS = range(3), 400, 200
HOT_SESSIONS, HOT_BLOCKS = 20, 8

Chain = list[bytes]


@dataclass(frozen=True, slots=True)
class Traffic:
    """One request: the names of its blocks, and whether it is a turn of a chat."""

    chain: Chain
    is_chat: bool


def measure() -> list[Row]:
    rows = []
    traces = [_trace(Random(seed)) for seed in SEEDS]
    for capacity in CAPACITIES:
        rates = {
            eviction: [_hit_rate(trace, capacity, eviction) for trace in traces] for eviction in Eviction
        }
        for eviction, values in rates.items():
            rows.append(Row.of(f"{capacity} blocks, {eviction}", "hit rate", values))
        ratios = [new / old for new, old in zip(rates[Eviction.S3FIFO], rates[Eviction.LRU], strict=True)]
        rows.append(Row.of(f"{capacity} blocks, s3fifo / lru", "ratio", ratios))
    bound = [_hit_rate(trace, sum(len(each.chain) for each in trace), Eviction.LRU) for trace in traces]
    rows.append(Row.of("a pool that holds everything", "hit rate", bound))
    return [*rows, *(_cost_row(traces[0], eviction) for eviction in Eviction), *_disk_rows(traces)]


def _disk_rows(traces: list[list[Traffic]]) -> list[Row]:
    rows = []
    for eviction in Eviction:
        found = [_disk_rate(traces[seed][:DISK_REQUESTS], eviction) for seed in DISK_SEEDS]
        rows.append(Row.of(f"disk of {DISK_BLOCKS} blocks, {eviction}", "hit rate", found))
    for eviction in Eviction:
        note = f"of {HOT_SESSIONS * HOT_BLOCKS} blocks"
        left = [_left_of_a_scan(eviction)]
        rows.append(
            Row.of(f"disk, left of sessions behind a scan of ten times it, {eviction}", "share", left, note)
        )
    return rows


def _trace(random: Random) -> list[Traffic]:
    lengths = [0] * NUM_SESSIONS
    weights = [1 / (rank + 1) for rank in range(NUM_SESSIONS)]
    trace = []
    for number in range(NUM_REQUESTS):
        if random.random() < DOCUMENT_SHARE:
            trace.append(Traffic(_chain(f"document {number}", DOCUMENT_BLOCKS), is_chat=False))
            continue
        session = random.choices(range(NUM_SESSIONS), weights)[0]
        lengths[session] += random.randint(1, 3)
        if lengths[session] > MAX_SESSION_BLOCKS:
            lengths[session] = 1
        system = _chain(f"system {session % NUM_SYSTEM_PROMPTS}", SYSTEM_BLOCKS)
        own = _chain(f"session {session}", lengths[session])
        trace.append(Traffic(system + own, is_chat=True))
    return trace


def _chain(name: str, length: int) -> Chain:
    return [f"{name}: {number}".encode() for number in range(length)]


def _hit_rate(trace: list[Traffic], capacity: int, eviction: Eviction) -> float:
    return _rate(_Pool(capacity, eviction), trace)


def _rate(pool: "_Pool | _Disk", trace: list[Traffic]) -> float:
    """Return the share of chats' blocks that were found as a usable prefix."""
    num_found = num_asked = 0
    for traffic in trace:
        found = pool.request(traffic.chain)
        if traffic.is_chat:
            num_found += found
            num_asked += len(traffic.chain)
    return num_found / num_asked


def _cost_row(trace: list[Traffic], eviction: Eviction) -> Row:
    """Time of the pool's bookkeeping for one block of a request, eviction included."""
    num_blocks = sum(len(traffic.chain) for traffic in trace)
    times = []
    for _ in SEEDS:
        pool, start_s = _Pool(CAPACITIES[1], eviction), perf_counter()
        for traffic in trace:
            pool.request(traffic.chain)
        times.append((perf_counter() - start_s) / num_blocks * 1e6)
    return Row.of(f"bookkeeping of a block, {eviction}", "us", times)


def _disk_rate(trace: list[Traffic], eviction: Eviction) -> float:
    with TemporaryDirectory() as directory:
        disk = _Disk(Path(directory), DISK_BLOCKS, eviction)
        rate = _rate(disk, trace)
        disk.store.close()
    return rate


def _left_of_a_scan(eviction: Eviction) -> float:
    """Return the share of sessions' blocks that a scan has left on disk."""
    sessions = [_chain(f"session {number}", HOT_BLOCKS) for number in range(HOT_SESSIONS)]
    with TemporaryDirectory() as directory:
        disk = _Disk(Path(directory), DISK_BLOCKS, eviction)
        for chain in [*sessions, *sessions, *sessions, _chain("document", 10 * DISK_BLOCKS)]:
            disk.request(chain)
        num_left = sum(disk.num_found(chain) for chain in sessions)
        disk.store.close()
    return num_left / (HOT_SESSIONS * HOT_BLOCKS)


class _HastyFiles(SystemFiles):
    """Waits for no medium: what is measured is what stays."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_dir(self, path: Path) -> None:
        pass


class _Disk:
    """A disk tier with room for so many blocks of one token each."""

    _GROUP, _FINGERPRINT = GroupId(0), bytes(32)
    _LAYOUT = (Region(name="k", dtype="F32", shape=(1,)),)

    def __init__(self, directory: Path, num_blocks: int, eviction: Eviction) -> None:
        self._headers: dict[bytes, BlockHeader] = {}
        self._num_ids = 0
        self._now_s = 0.0
        self.store = self._open(directory / "sized", None, eviction)
        self.request(_chain("any", 1))
        limit_bytes = num_blocks * self.store.usage().num_bytes
        self.store.close()
        self.store = self._open(directory / "disk", limit_bytes, eviction)

    def request(self, chain: Chain) -> int:
        """Use a chain once and return how many of its blocks were found."""
        headers = self._headers_of(chain)
        num_found = self.num_found(chain)
        self.store.touch(header.key for header in headers[:num_found])
        for header in headers[num_found:]:
            self.store.write([(header, bytes(4))])
        self.store.flush_touched()
        return num_found

    def num_found(self, chain: Chain) -> int:
        there = self.store.has_all([header.key for header in self._headers_of(chain)], self._GROUP)
        return next((number for number, flag in enumerate(there) if not flag), len(chain))

    def _open(self, directory: Path, limit_bytes: int | None, eviction: Eviction) -> DiskStore:
        return DiskStore(
            directory,
            fingerprint=self._FINGERPRINT,
            layouts={self._GROUP: self._LAYOUT},
            block_size=1,
            limit_bytes=limit_bytes,
            clock=self._tick,
            files=_HastyFiles(),
            eviction=eviction,
        )

    def _tick(self) -> float:
        self._now_s += 1.0
        return self._now_s

    def _headers_of(self, chain: Chain) -> list[BlockHeader]:
        parent = root_key(self._FINGERPRINT)
        found = []
        for name in chain:
            if name not in self._headers:
                self._num_ids += 1
                self._headers[name] = BlockHeader.of(self._GROUP, parent, (self._num_ids,))
            found.append(self._headers[name])
            parent = found[-1].key
        return found


class _Pool:
    """A block pool with an index by name."""

    def __init__(self, capacity: int, eviction: Eviction) -> None:
        self._blocks: dict[bytes, BlockId] = {}
        self._pool = BlockPool(capacity, self._gone, make_order(eviction, capacity))

    def request(self, chain: Chain) -> int:
        """Use a chain once and return how many of its blocks were found."""
        num_found = next((n for n, name in enumerate(chain) if name not in self._blocks), len(chain))
        held = [self._blocks[name] for name in chain[:num_found]]
        for block in held:
            self._pool.share(block)
            self._pool.touch(block)
        for number in range(num_found, len(chain)):
            block = self._pool.allocate()
            parent = chain[number - 1] if number else b"root"
            self._pool.name(block, BlockKey(chain[number]), BlockKey(parent))
            self._blocks[chain[number]] = block
            held.append(block)
        for block in reversed(held):
            self._pool.release(block)
        return num_found

    def _gone(self, key: BlockKey) -> None:
        del self._blocks[key]
