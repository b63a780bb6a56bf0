"""Which blocks on disk make room: as a slow reference says, where a layer group keeps all blocks and another
the last of a window.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvchat.engine.api.ids import BlockKey, GroupId
from kvchat.engine.cache.eviction import Eviction
from tests.engine.memory.chains import FULL, SLIDING, TREE, Block, block_behind
from tests.engine.memory.disk.small_disk import Disk

pytestmark = pytest.mark.pure

SMALL_SHARE = 10
Name = tuple[BlockKey, GroupId]


def sliding(block: Block) -> Block:
    """Return what the other group has of a block."""
    return block_behind(block.header.parent, list(block.header.token_ids), SLIDING)


@dataclass
class Row:
    used_s: float
    parent: BlockKey
    is_proven: bool
    num_bytes: int


@dataclass(frozen=True)
class Leaf:
    """A block that may go, by the group that was used last."""

    key: BlockKey
    used_s: float
    is_proven: bool


@dataclass
class SlowDisk:
    """The rules over a list of files that is searched from the front."""

    limit_bytes: int
    eviction: Eviction
    rows: dict[Name, Row] = field(default_factory=dict)
    ghosts: set[Name] = field(default_factory=set)
    kept: set[BlockKey] = field(default_factory=set)
    refused: set[BlockKey | Name] = field(default_factory=set)

    def write(self, block: Block, num_bytes: int, now_s: float) -> bool:
        name = (block.key, block.header.group)
        if not self.welcomes(block, name, num_bytes):
            self.refused |= {block.key, name}
            return False
        is_proven = name in self.ghosts
        self.ghosts.discard(name)
        self.rows[name] = Row(now_s, block.header.parent, is_proven, num_bytes)
        while self.num_bytes > self.limit_bytes:
            victim = self.victim(but=block.key)
            if victim is None:
                del self.rows[name]
                self.ghosts |= {name} if is_proven else set()
                self.refused |= {block.key, name}
                return False
            for gone in [gone for gone in self.rows if gone[0] == victim.key]:
                del self.rows[gone]
                self.ghosts |= set() if victim.is_proven else {gone}
        self.refused -= {block.key, name}
        return True

    def welcomes(self, block: Block, name: Name, num_bytes: int) -> bool:
        is_behind = block.header.parent in self.refused
        is_behind |= block.key in self.refused and name not in self.refused
        if not is_behind:
            fits = self.num_bytes + num_bytes <= self.limit_bytes
            if fits or name in self.ghosts or self.eviction is Eviction.LRU:
                return True
            num_once = self.num_once()
            if num_once == 0 or (num_once + 1) * SMALL_SHARE < len(self.rows) + 1:
                return True
        if block.key in self.kept:
            return True
        own = {block.key, block.header.parent}
        once = [leaf for leaf in self.leaves() if not leaf.is_proven]
        return not is_behind and any(leaf.key not in own for leaf in once)

    def victim(self, but: BlockKey) -> Leaf | None:
        free = [leaf for leaf in self.leaves() if leaf.key != but]
        if self.eviction is Eviction.LRU:
            return oldest(free)
        once, again = ([leaf for leaf in free if leaf.is_proven is flag] for flag in (False, True))
        if self.num_once() * SMALL_SHARE < len(self.rows):
            return oldest(again) or oldest(once)
        return oldest(once) or oldest(again)

    def leaves(self) -> list[Leaf]:
        parents = {row.parent for row in self.rows.values()}
        found = []
        for key in {key for key, _ in self.rows} - parents - self.kept:
            of_block = [row for (other, _), row in self.rows.items() if other == key]
            is_proven = any(row.is_proven for row in of_block)
            # Where uses count, that a group was written later is none.
            used_s = [row.used_s for row in of_block if row.is_proven or not (is_proven and self.counts_uses)]
            found.append(Leaf(key, max(used_s), is_proven))
        return found

    def num_once(self) -> int:
        return sum(not row.is_proven for (key, _), row in self.rows.items() if key not in self.kept)

    @property
    def counts_uses(self) -> bool:
        return self.eviction is Eviction.S3FIFO

    @property
    def num_bytes(self) -> int:
        return sum(row.num_bytes for row in self.rows.values())

    def touch(self, key: BlockKey, now_s: float) -> None:
        for (other, _), row in self.rows.items():
            if other == key:
                row.used_s, row.is_proven = now_s, True


def oldest(leaves: Iterable[Leaf]) -> Leaf | None:
    return min(leaves, key=lambda leaf: leaf.used_s, default=None)


ACTIONS = st.tuples(
    st.sampled_from(["write", "write", "write both", "write both", "touch", "touch", "keep", "reopen"]),
    st.sampled_from(sorted(TREE)),
)


@pytest.mark.parametrize("eviction", list(Eviction))
@settings(max_examples=8, deadline=None)
@given(num_blocks=st.integers(2, 14), actions=st.lists(ACTIONS, max_size=50))
@example(num_blocks=2, actions=[("write both", (0, 0))])
@example(num_blocks=3, actions=[("write", (0, 0, 0)), ("write both", (0, 0, 0))])
@example(num_blocks=3, actions=[("write", (0,)), ("write", (2, 0)), ("write both", (0,))])
@example(num_blocks=2, actions=[("write", (0,)), ("keep", (0,)), ("write", (3, 0, 0))])
def test_on_any_trace_of_two_groups_the_same_files_go_as_in_the_slow_reference(
    eviction: Eviction, num_blocks: int, actions: list[tuple[str, tuple[int, ...]]]
) -> None:
    with TemporaryDirectory() as directory:
        disk = Disk(Path(directory), num_blocks, eviction)
        slow = SlowDisk(num_blocks * disk.bytes_each, eviction)
        small = Disk(Path(directory) / "measured", 9)
        small.write(sliding(TREE[0,]))
        sizes = {FULL: disk.bytes_each, SLIDING: small.store.total_usage().num_bytes}
        small.store.close()
        for action, path in actions:
            block = TREE[path]
            if action.startswith("write"):
                # As a request does: whatever is missing before it comes first; a window needs its end alone.
                for end in range(1, len(path) + 1):
                    write(disk, slow, TREE[path[:end]], sizes)
                if action == "write both":
                    write(disk, slow, sliding(block), sizes)
            elif action == "touch":
                disk.touch([block])
                slow.touch(block.key, disk.clock.now_s)
            elif action == "keep":
                disk.keep([block])
                slow.kept = {block.key}
            else:
                disk.reopen()
                slow.ghosts.clear()
                slow.refused.clear()
            settled, unsettled = disk.store._index.names()
            assert {(key, group) for _, key, group in settled} == set(slow.rows)
            assert not unsettled
            assert disk.store.total_usage().num_bytes == slow.num_bytes <= slow.limit_bytes
            assert disk.store._index.num_unproven() == sum(not row.is_proven for row in slow.rows.values())
        disk.store.close()


def write(disk: Disk, slow: SlowDisk, block: Block, sizes: dict[GroupId, int]) -> None:
    name = (block.key, block.header.group)
    if name not in slow.rows:
        assert disk.write(block) == slow.write(block, sizes[name[1]], disk.clock.now_s)
