"""What stays cached under pressure: S3-FIFO beside the least recently used, on simulated chat traffic.

Sessions share one of a few system prompts and come back by Zipf's law, each turn a few blocks longer; some
requests read a long document once. A pool of blocks is filled as an engine fills it: what a request needs is
held while it runs, and let go from the last block to the first. Counted are the blocks of chat prompts that
were found as a usable prefix. The bound is a pool that holds everything.
"""

from dataclasses import dataclass
from random import Random
from time import perf_counter

from benchmarks.table import Row
from kvchat.engine.api.ids import BlockId, BlockKey
from kvchat.engine.cache.block_pool import BlockPool
from kvchat.engine.cache.eviction import Eviction, make_order

SEEDS = range(5)
NUM_REQUESTS = 3000
NUM_SESSIONS = 60
NUM_SYSTEM_PROMPTS = 5
SYSTEM_BLOCKS = 6
MAX_SESSION_BLOCKS = 40
DOCUMENT_BLOCKS = 80
DOCUMENT_SHARE = 0.15
CAPACITIES = (200, 400, 800)

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
    return [*rows, *(_cost_row(traces[0], eviction) for eviction in Eviction)]


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
    pool = _Pool(capacity, eviction)
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
