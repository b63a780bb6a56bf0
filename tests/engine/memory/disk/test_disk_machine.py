"""Whatever happens to a store, it gives back what was written or says that it cannot."""

import shutil
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvchat.engine.api.ids import BlockKey, GroupId
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import BlockDamaged, BlockMissing
from tests.damage import flip
from tests.engine.memory.chains import FULL, SLIDING, chain, open_store, path_of, read
from tests.hand_clock import HandClock
from tests.quick_disk import quick_place

pytestmark = [pytest.mark.pure, pytest.mark.long]

# Two conversations that share their first block, with tails, in both groups.
BLOCKS = {
    (block.key, group): block
    for group in (FULL, SLIDING)
    for token_ids in ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 50, 60, 70, 80], [1, 2, 3, 4, 5])
    for block in chain(token_ids, group)
}
NAMES = st.sampled_from(sorted(BLOCKS))


class Disk(RuleBasedStateMachine):
    """Two stores on one directory, against the set of names that must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.cache_dir = Path(mkdtemp(prefix="kvchat-disk-", dir=quick_place()))
        self.clock = HandClock()
        self.stores = [self._open(), self._open()]
        self.present: set[tuple[BlockKey, GroupId]] = set()

    def _open(self, limit_bytes: int | None = None) -> DiskStore:
        return open_store(self.cache_dir, clock=self.clock, limit_bytes=limit_bytes)

    @rule(name=NAMES, number=st.sampled_from([0, 1]))
    def write(self, name: tuple[BlockKey, GroupId], number: int) -> None:
        self.clock.now_s += 1
        block = BLOCKS[name]
        assert self.stores[number].write([(block.header, block.payload)]) == (name not in self.present)
        self.present.add(name)

    @rule(name=NAMES, number=st.sampled_from([0, 1]))
    def remove(self, name: tuple[BlockKey, GroupId], number: int) -> None:
        self.stores[number].remove(*name)
        self.present.discard(name)

    @rule(name=NAMES, number=st.sampled_from([0, 1]))
    def touch(self, name: tuple[BlockKey, GroupId], number: int) -> None:
        self.clock.now_s += 1
        self.stores[number].touch([name[0]])

    @rule(name=NAMES, position=st.integers(min_value=0, max_value=10_000), number=st.sampled_from([0, 1]))
    def damage(self, name: tuple[BlockKey, GroupId], position: int, number: int) -> None:
        if name in self.present:
            flip(path_of(self.cache_dir, BLOCKS[name]), position, 0x40)
            with pytest.raises(BlockDamaged):
                read(self.stores[number], BLOCKS[name])
            self.present.discard(name)

    @rule(name=NAMES)
    def lose_a_file(self, name: tuple[BlockKey, GroupId]) -> None:
        path_of(self.cache_dir, BLOCKS[name]).unlink(missing_ok=True)
        with pytest.raises(BlockMissing):
            read(self.stores[0], BLOCKS[name])
        self.present.discard(name)

    @rule(lose_the_index=st.booleans())
    def reopen(self, lose_the_index: bool) -> None:
        for store in self.stores:
            store.close()
        if lose_the_index:
            (self.cache_dir / "index.db").unlink()
        self.stores = [self._open(), self._open()]

    @rule(num_files=st.integers(min_value=0, max_value=8))
    def shrink(self, num_files: int) -> None:
        """Open once with a limit: what is left fits it, and no child outlives its parent."""
        limit_bytes = num_files * 900
        small = self._open(limit_bytes)
        assert small.usage().num_bytes <= limit_bytes
        small.close()
        left = {name for name in self.present if path_of(self.cache_dir, BLOCKS[name]).exists()}
        keys, before = {key for key, _ in left}, {key for key, _ in self.present}
        for key, group in left:
            parent = BLOCKS[key, group].header.parent
            assert parent in keys or parent not in before
        self.present = left

    @invariant()
    def everything_present_reads_back_and_nothing_else_is_announced(self) -> None:
        for store in self.stores:
            for name, block in BLOCKS.items():
                assert store.has(*name) == (name in self.present)
                if name in self.present:
                    assert read(store, block) == block.payload
            usage = store.usage()
            sizes = [path_of(self.cache_dir, BLOCKS[name]).stat().st_size for name in self.present]
            assert (usage.num_blocks, usage.num_bytes) == (len(sizes), sum(sizes))
            assert len(list(self.cache_dir.rglob("blocks/**/*.safetensors"))) == len(sizes)
            assert usage.num_tails == sum(len(BLOCKS[name].header.token_ids) < 4 for name in self.present)

    @invariant()
    def children_are_those_present(self) -> None:
        for parent in {block.header.parent for block in BLOCKS.values()}:
            found = {
                (child.key, group) for child in self.stores[0].children(parent) for group in child.groups
            }
            assert found == {name for name in self.present if BLOCKS[name].header.parent == parent}

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.cache_dir)


TestDisk = Disk.TestCase
TestDisk.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
