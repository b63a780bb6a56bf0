"""Blocks of all branches in all groups: matching, allocation, sharing, copy-on-write, publishing.

The manager is integer bookkeeping. It returns moves (copy these slots, load that block) and remembers table
changes and blocks to save; others move the bytes. Moves must be executed in the order in which they were
returned, before the next step writes.
"""

from collections.abc import Iterable, Sequence
from functools import partial as bind
from itertools import count

from kvchat.engine.api.ids import BlockId, BlockKey, BranchId, GroupId, block_key, root_key
from kvchat.engine.cache.block_pool import BlockPool
from kvchat.engine.cache.branch import Branch
from kvchat.engine.cache.host_tier import HostTier
from kvchat.engine.cache.integrity import check_branch, check_holders, check_index
from kvchat.engine.cache.live_tails import LiveTails
from kvchat.engine.cache.match import PartialBlock, PrefixMatch, PrefixMatcher
from kvchat.engine.cache.plan import Copy, Demote, Load, Move, Promote, Save, TableChange
from kvchat.engine.cache.prefix_index import IndexNode, PrefixIndex
from kvchat.engine.cache.spec import Group
from kvchat.engine.cache.tiers import NoTier, SlowTier, SlowTiers


class CacheManager:
    """Owns the block tables of every live branch and the index of named blocks."""

    def __init__(
        self,
        groups: Sequence[Group],
        num_blocks: dict[GroupId, int],
        *,
        block_size: int,
        fingerprint: bytes,
        slow: SlowTier | None = None,
        host: HostTier | None = None,
    ) -> None:
        """Args:
        num_blocks: blocks of each group's pool.
        fingerprint: root of all names.
        slow: what the disk has.
        host: takes what is evicted; None: it is lost.
        """
        self.groups = tuple(groups)
        self.block_size = block_size
        self.root = root_key(fingerprint)
        self._fingerprint = fingerprint
        self.index = PrefixIndex()
        self.pools = {
            group.id: BlockPool(num_blocks[group.id], bind(self._evicted, group.id)) for group in groups
        }
        self.branches: dict[BranchId, Branch] = {}
        self._ids = count(1)
        self._tails = LiveTails(block_size)
        self._pins: list[tuple[GroupId, BlockId]] = []
        self._changes: list[TableChange] = []
        self._dropped: list[BranchId] = []
        self._saves: list[Save] = []
        self.host = host or HostTier((), {})
        self._demotions: list[Demote] = []
        self._matcher = PrefixMatcher(
            self.groups, block_size, self.index, SlowTiers(self.host, slow or NoTier()), self._tails.behind
        )

    # Branches

    def open(self, owner: str, token_ids: Iterable[int], namespace: str = "") -> Branch:
        """Return a new live branch that holds no block yet; it shares blocks with its namespace alone."""
        branch = Branch(
            id=BranchId(next(self._ids)),
            owner=owner,
            root=root_key(self._fingerprint, namespace),
            token_ids=list(token_ids),
            tables=[[] for _ in self.groups],
        )
        self.branches[branch.id] = branch
        return branch

    def fork(self, branch: Branch) -> Branch:
        """Return a new branch on the same blocks, the tail included. Moves no byte."""
        child = self.open(branch.owner, branch.token_ids)
        child.root = branch.root
        child.computed_len = branch.computed_len
        child.keys = list(branch.keys)
        # Blocks behind the tail belong to a step that never ended; both would write them.
        num_blocks = self._num_blocks(branch.computed_len)
        child.tables = [table[:num_blocks] for table in branch.tables]
        for group, table in zip(self.groups, child.tables, strict=True):
            for block in table:
                if block is not None:
                    self.pools[group.id].share(block)
            self._table_changed(child, group, 0)
        self._watch_tail(child)
        return child

    def release(self, branch: Branch) -> None:
        """Let go of a branch. Its blocks stay cached, its tail as a copy source."""
        self.reset(branch)
        del self.branches[branch.id]
        self._dropped.append(branch.id)

    def reset(self, branch: Branch) -> None:
        """Let go of a branch's blocks; its token ids stay, and it can be admitted again."""
        self._unwatch_tail(branch)
        self._name_tail(branch)
        self._let_go(branch)

    def abandon(self, branch: Branch) -> None:
        """Let go of the blocks that `admit` took when a load failed: none of them gets a name, since their
        bytes are not all there.
        """
        self._unwatch_tail(branch)
        self._let_go(branch)

    # Blocks of a branch

    def match(self, branch: Branch, max_len: int | None = None) -> PrefixMatch:
        """Return what of an empty branch's tokens can be reused, at most `max_len` tokens. Pure."""
        return self._matcher.match(branch.root, branch.token_ids, max_len)

    def admit(self, branch: Branch, match: PrefixMatch, num_following: int = 0) -> tuple[Move, ...] | None:
        """Take the matched blocks into an empty branch's tables.

        Args:
            num_following: tokens behind the matched ones for which there must be room too.

        Returns:
            The copies and loads that fill them, or None if there is no room; then nothing has changed. After
            loads, `confirm` or `abandon` must follow.
        """
        assert branch.computed_len == 0
        assert not any(branch.tables)
        resident = {group.id: self._resident(group, match) for group in self.groups}
        if not all(self._has_room(group, resident[group.id], match, num_following) for group in self.groups):
            return None
        self._hold(resident, match)
        moves: list[Move] = []
        for group in self.groups:
            moves += self._fill_table(group, branch, resident[group.id], match)
            self._table_changed(branch, group, 0)
        branch.keys = list(match.keys)
        branch.computed_len = match.length
        branch.saved_tail = match.partial.key if match.partial and match.partial.is_whole else None
        self._watch_tail(branch)
        return self.take_demotions() + tuple(moves)

    def confirm(self, branch: Branch) -> None:
        """Name the full blocks that `admit` had loaded: their bytes are there and verified."""
        for number, key in enumerate(branch.keys):
            for group, table in zip(self.groups, branch.tables, strict=True):
                block = table[number] if number < len(table) else None
                if block is not None and self.pools[group.id].key(block) is None:
                    self._publish(branch, group, number, key)

    def extend(self, branch: Branch, num_tokens: int) -> tuple[Move, ...] | None:
        """Make the slots of the next `num_tokens` tokens writable.

        Returns:
            The copies a shared tail needs before it is written, or None if there is no room; then nothing has
            changed.
        """
        if any(
            self._num_missing(branch, group, num_tokens) > self.pools[group.id].num_available
            for group in self.groups
        ):
            return None
        moves: list[Move] = []
        for group, table in zip(self.groups, branch.tables, strict=True):
            moves += self._own_tail(branch, group, table)
            start = len(table)
            end = self._num_blocks(branch.computed_len + num_tokens)
            table += [self.pools[group.id].allocate() for _ in range(start, end)]
            if end > start:
                self._table_changed(branch, group, start)
        return self.take_demotions() + tuple(moves)

    def commit(self, branch: Branch, num_tokens: int) -> None:
        """Record that the next `num_tokens` tokens have been written: name full blocks, drop what left a
        window.
        """
        branch.computed_len += num_tokens
        first, last = len(branch.keys), branch.computed_len // self.block_size
        if last > first:
            self._unwatch_tail(branch)
        for number in range(first, last):
            key = block_key(self._parent(branch), self._block_ids(branch, number))
            branch.keys.append(key)
            for group in self.groups:
                self._publish(branch, group, number, key, save=True)
        if last > first:
            branch.saved_tail = None
        self._watch_tail(branch)
        for group, table in zip(self.groups, branch.tables, strict=True):
            self._leave_window(group, table, branch.computed_len)

    # What others carry out

    def finish_moves(self) -> None:
        """Note that all moves have been executed: unpin sources, name what was demoted."""
        for group, block in self._pins:
            self.pools[group].release(block)
        self._pins.clear()
        self.host.finish_moves()

    def take_changes(self) -> tuple[tuple[TableChange, ...], tuple[BranchId, ...]]:
        """Return the table changes and the released branches since the last call."""
        changes, dropped = tuple(self._changes), tuple(self._dropped)
        self._changes.clear()
        self._dropped.clear()
        return changes, dropped

    def take_saves(self) -> tuple[Save, ...]:
        """Return the blocks that were named since the last call, in order."""
        saves = tuple(self._saves)
        self._saves.clear()
        return saves

    def tail_saves(self, branch: Branch) -> tuple[Save, ...]:
        """Return what must be written so that the branch's tail is stored; nothing if it is. Pure."""
        number, num_tokens = divmod(branch.computed_len, self.block_size)
        if not num_tokens:
            return ()
        ids = self._block_ids(branch, number)
        parent = self._parent(branch)
        key = block_key(parent, ids)
        if key == branch.saved_tail:
            return ()
        return tuple(
            Save(group.id, key, parent, ids, block, branch.saved_tail)
            for group in self.groups
            if (block := branch.tables[group.id][number]) is not None
        )

    def block_saves(self, branch: Branch) -> tuple[Save, ...]:
        """Return every full block that the branch holds, for a store that may lack some of them. Pure."""
        return tuple(
            Save(group.id, key, self._parent_of(branch, number), self._block_ids(branch, number), block)
            for group in self.groups
            for number, key in enumerate(branch.keys)
            if (block := branch.tables[group.id][number]) is not None
        )

    def is_resident(self, save: Save) -> bool:
        """Whether the block to be saved still has its name. Pure."""
        return self.pools[save.group].key(save.block) == save.key

    def check_integrity(self) -> None:
        """Raise AssertionError on any broken invariant."""
        for group in self.groups:
            check_holders(group, self.pools[group.id], self.branches.values(), self._pins)
        check_index(self.index, self.pools)
        for branch in self.branches.values():
            check_branch(branch, self.groups, self.pools, self.block_size)
        self.host.check_integrity()

    # Parts of the above

    def _resident(self, group: Group, match: PrefixMatch) -> list[BlockId | None]:
        """Return the device blocks of the matched blocks that `group` needs, None where it must load."""
        first = group.spec.first_visible(match.length) // self.block_size
        return [self.index.block(key, group.id) for key in match.keys[first:]]

    def _has_room(
        self, group: Group, resident: list[BlockId | None], match: PrefixMatch, num_following: int
    ) -> bool:
        """Whether the blocks that `group` lacks can be allocated without evicting those that are matched."""
        pool = self.pools[group.id]
        found = [block for block in resident if block is not None]
        num_missing = len(resident) - len(found)
        num_missing += self._num_blocks(match.length + num_following) - self._num_blocks(match.length)
        if match.partial:
            num_missing += 1
            found += [match.partial.blocks[group.id]] if group.id in match.partial.blocks else []
        return num_missing <= pool.num_available - sum(pool.count(block) == 0 for block in found)

    def _hold(self, resident: dict[GroupId, list[BlockId | None]], match: PrefixMatch) -> None:
        """Hold every matched block, on the device and in host memory, before anything is allocated: what is
        allocated evicts, and what is evicted takes places in host memory.
        """
        for group, blocks in resident.items():
            for key, block in zip(match.keys[len(match.keys) - len(blocks) :], blocks, strict=True):
                if block is not None:
                    self.pools[group].share(block)
                else:
                    self.host.hold(key, group)
        if match.partial:
            for group in self.pools:
                self._hold_source(group, match.partial)

    def _hold_source(self, group: GroupId, partial: PartialBlock) -> None:
        block = partial.blocks.get(group)
        if block is not None:
            self.pools[group].share(block)
            self._pins.append((group, block))
        elif partial.key is not None:
            self.host.hold(partial.key, group)

    def _fill_table(
        self, group: Group, branch: Branch, resident: list[BlockId | None], match: PrefixMatch
    ) -> Iterable[Move]:
        pool, table = self.pools[group.id], branch.tables[group.id]
        first = len(match.keys) - len(resident)
        table += [None] * first
        for number, block in enumerate(resident, start=first):
            if block is None:
                block = pool.allocate()
                parent = match.keys[number - 1] if number else branch.root
                yield self._fetch(Load(group.id, match.keys[number], parent, match.block_ids[number], block))
            table.append(block)
        if match.partial:
            target = pool.allocate()
            table.append(target)
            source = match.partial.blocks.get(group.id)
            if source is not None:
                yield Copy(group.id, source, target, match.partial.num_tokens)
            else:
                assert match.partial.key is not None
                parent = match.keys[-1] if match.keys else branch.root
                yield self._fetch(Load(group.id, match.partial.key, parent, match.partial.token_ids, target))

    def _fetch(self, load: Load) -> Move:
        """Return the load, or the move that brings the same block from host memory if it is there."""
        place = self.host.find(load.key, load.group)
        return load if place is None else Promote(load.group, place, load.target)

    def _own_tail(self, branch: Branch, group: Group, table: list[BlockId | None]) -> Iterable[Move]:
        """Copy the tail before the first write if another table holds it too."""
        number, num_tokens = divmod(branch.computed_len, self.block_size)
        pool = self.pools[group.id]
        if not num_tokens:
            return
        shared = table[number]
        assert shared is not None
        if pool.count(shared) == 1:
            return
        own = table[number] = pool.allocate()
        self._pins.append((group.id, shared))
        self._changes.append(TableChange(branch.id, group.id, number, (own,)))
        yield Copy(group.id, shared, own, num_tokens)

    def _num_missing(self, branch: Branch, group: Group, num_tokens: int) -> int:
        table = branch.tables[group.id]
        missing = self._num_blocks(branch.computed_len + num_tokens) - len(table)
        if branch.computed_len % self.block_size:
            tail = table[branch.computed_len // self.block_size]
            assert tail is not None
            missing += self.pools[group.id].count(tail) > 1
        return missing

    def _publish(self, branch: Branch, group: Group, number: int, key: BlockKey, save: bool = False) -> None:
        """Name a full block, or give it up for the block that already has the name."""
        table = branch.tables[group.id]
        block = table[number]
        if block is None:
            return
        pool = self.pools[group.id]
        known = self.index.block(key, group.id)
        if known is not None:
            pool.share(known)
            pool.release(block)
            table[number] = known
            self._changes.append(TableChange(branch.id, group.id, number, (known,)))
            return
        parent = self._parent_of(branch, number)
        ids = self._block_ids(branch, number)
        pool.name(block, key)
        self.index.add(IndexNode(key, parent, ids), group.id, block)
        if save:
            self._saves.append(Save(group.id, key, parent, ids, block, branch.saved_tail))

    def _name_tail(self, branch: Branch) -> None:
        number, num_tokens = divmod(branch.computed_len, self.block_size)
        if not num_tokens:
            return
        ids = self._block_ids(branch, number)
        key = block_key(self._parent(branch), ids)
        for group, table in zip(self.groups, branch.tables, strict=True):
            block = table[number]
            if block is None or self.pools[group.id].count(block) > 1:
                continue
            if self.index.block(key, group.id) is None:
                self.pools[group.id].name(block, key)
                self.index.add(IndexNode(key, self._parent(branch), ids), group.id, block)

    def _let_go(self, branch: Branch) -> None:
        for group, table in zip(self.groups, branch.tables, strict=True):
            for block in reversed(table):
                if block is not None:
                    self.pools[group.id].release(block)
            table.clear()
        branch.computed_len = 0
        branch.keys.clear()

    def _leave_window(self, group: Group, table: list[BlockId | None], position: int) -> None:
        end = min(group.spec.first_visible(position) // self.block_size, len(table))
        start = end
        while start and table[start - 1] is not None:
            start -= 1
        for number in range(start, end):
            block = table[number]
            assert block is not None
            self.pools[group.id].release(block)
            table[number] = None

    def _evicted(self, group: GroupId, key: BlockKey) -> None:
        """Forget a block that is losing its place, and keep its bytes in host memory if there is room."""
        block = self.index.block(key, group)
        assert block is not None
        place = self.host.reserve(self.index.node(key), group)
        if place is not None:
            self._demotions.append(Demote(group, block, place))
        self.index.remove(key, group)

    def take_demotions(self) -> tuple[Demote, ...]:
        """Return the moves that bring evicted blocks to host memory, due before anything is overwritten."""
        demotions = tuple(self._demotions)
        self._demotions.clear()
        return demotions

    def _table_changed(self, branch: Branch, group: Group, start: int) -> None:
        table = branch.tables[group.id]
        while start < len(table) and table[start] is None:
            start += 1
        blocks = tuple(block for block in table[start:] if block is not None)
        assert len(blocks) == len(table) - start, "a table has holes only before its window"
        if blocks:
            self._changes.append(TableChange(branch.id, group.id, start, blocks))

    def _watch_tail(self, branch: Branch) -> None:
        self._tails.watch(branch, self._parent(branch))

    def _unwatch_tail(self, branch: Branch) -> None:
        self._tails.unwatch(branch, self._parent(branch))

    def _parent(self, branch: Branch) -> BlockKey:
        return branch.keys[-1] if branch.keys else branch.root

    def _parent_of(self, branch: Branch, number: int) -> BlockKey:
        return branch.keys[number - 1] if number else branch.root

    def _block_ids(self, branch: Branch, number: int) -> tuple[int, ...]:
        start = number * self.block_size
        return tuple(branch.token_ids[start : min(start + self.block_size, branch.computed_len)])

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
