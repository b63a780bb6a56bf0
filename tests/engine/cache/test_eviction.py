"""Which cached block makes room: as a slow reference says, leaves first, and not by one scan."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchat.engine.api.ids import BlockId, BlockKey
from kvchat.engine.cache.block_pool import BlockPool
from kvchat.engine.cache.eviction import Eviction, S3Fifo, make_order
from tests.engine.cache.slow_eviction import Path, SlowPool

pytestmark = pytest.mark.pure

BOTH = pytest.mark.parametrize("eviction", list(Eviction))


class Pool:
    """A real pool, addressed by paths. `evicted`: what had to go, in order."""

    def __init__(self, num_blocks: int, eviction: Eviction) -> None:
        self.order = make_order(eviction, num_blocks)
        self.evicted: list[Path] = []
        self.blocks: dict[Path, BlockId] = {}
        self.pool = BlockPool(num_blocks, self._gone, self.order)
        self.num_blocks = num_blocks

    def make(self, path: Path) -> None:
        block = self.pool.allocate()
        self.blocks[path] = block
        self.pool.name(block, named(path), named(path[:-1]))

    def hold(self, path: Path) -> None:
        self.pool.share(self.blocks[path])

    def drop(self, path: Path) -> None:
        self.pool.release(self.blocks[path])

    def touch(self, path: Path) -> None:
        self.pool.touch(self.blocks[path])

    def forget(self, path: Path) -> None:
        self.pool.forget(self.blocks.pop(path))

    def request(self, paths: Sequence[Path]) -> int:
        """Use a chain as a request does, and return how many of its blocks were found."""
        found = next((n for n, path in enumerate(paths) if path not in self.blocks), len(paths))
        for path in paths[:found]:
            self.hold(path)
            self.touch(path)
        for path in paths[found:]:
            self.make(path)
        for path in reversed(paths):
            self.drop(path)
        return found

    def _gone(self, key: BlockKey) -> None:
        path = next(path for path in self.blocks if named(path) == key)
        del self.blocks[path]
        self.evicted.append(path)


def named(path: Path) -> BlockKey:
    return BlockKey(bytes(path) or b"root")


def chain(*steps: int, length: int) -> list[Path]:
    """Return a chain of `length` blocks that begins with `steps`."""
    whole = (*steps, *[0] * length)[:length]
    return [whole[:end] for end in range(1, length + 1)]


class Traces:
    """One random trace on a real pool and on the slow one."""

    def __init__(self, num_blocks: int, eviction: Eviction) -> None:
        self.real = Pool(num_blocks, eviction)
        self.slow = SlowPool(num_blocks, eviction is Eviction.S3FIFO)
        self.slow_evicted: list[Path] = []
        self.held: list[Path] = []

    def apply(self, action: str, path: Path, which: int) -> None:
        if action == "drop" and self.held:
            path = self.held.pop(which % len(self.held))
            self.real.drop(path)
            self.slow.drop(path)
        elif action == "use":
            self.hold(path)
        elif path in self.slow.holders and action in ("touch", "forget"):
            if action == "touch":
                self.real.touch(path)
                self.slow.touch(path)
            elif not self.slow.holders[path]:
                self.real.forget(path)
                self.slow.forget(path)
        self.check()

    def hold(self, path: Path) -> None:
        if path in self.slow.holders:
            self.real.hold(path)
            self.slow.hold(path)
        elif self.real.pool.num_available:
            self.real.make(path)
            gone = self.slow.make(path)
            self.slow_evicted += [] if gone is None else [gone]
        else:
            return
        self.held.append(path)

    def check(self) -> None:
        assert self.real.evicted == self.slow_evicted
        assert set(self.real.blocks) == set(self.slow.holders)
        assert self.real.pool.num_cached == len(self.slow.small) + len(self.slow.main)
        if isinstance(self.real.order, S3Fifo):
            assert len(self.real.order._ghosts) == len(self.slow.ghosts) <= self.real.num_blocks


paths = st.lists(st.integers(0, 1), min_size=1, max_size=4).map(tuple)
actions = st.tuples(
    st.sampled_from(["use", "use", "use", "drop", "drop", "drop", "touch", "forget"]),
    paths,
    st.integers(0, 9),
)


@BOTH
@settings(max_examples=80)
@given(num_blocks=st.integers(1, 12), trace=st.lists(actions, max_size=80))
def test_on_any_trace_the_same_blocks_go_as_in_the_slow_reference(
    eviction: Eviction, num_blocks: int, trace: list[tuple[str, Path, int]]
) -> None:
    traces = Traces(num_blocks, eviction)
    for action in trace:
        traces.apply(*action)


@pytest.mark.parametrize(("piece_len", "num_pieces"), [(30, 4), (12, 10), (2, 120)])
@pytest.mark.parametrize(("eviction", "num_left"), [(Eviction.S3FIFO, 8), (Eviction.LRU, 0)])
def test_hot_blocks_survive_a_scan_of_three_times_the_pool_where_the_control_loses_them(
    eviction: Eviction, num_left: int, piece_len: int, num_pieces: int
) -> None:
    """Each piece of the scanned document is used once, and no piece is a part of another."""
    pool = Pool(40, eviction)
    hot = chain(1, length=8)
    for _ in range(3):
        pool.request(hot)
    for piece in range(num_pieces):
        pool.request(chain(2, piece, length=piece_len))
    assert pool.request(hot) == num_left
