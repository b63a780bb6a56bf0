"""Blocks of all sequences in all groups: matching, allocation, sharing, copy-on-write.

The manager is integer bookkeeping. It returns moves (copy these slots, demote that block) and remembers table
changes and blocks to save; others move the bytes. Moves must be executed in the order in which they were
returned, before the next step writes. What comes from slower tiers is brought by transfers, not by moves.
"""

from collections.abc import Iterable
from itertools import count

from kvchat.engine.api.cache_events import CacheEventKind
from kvchat.engine.api.ids import BlockId, BlockKey, GroupId, SequenceId, root_key
from kvchat.engine.api.namespace import parse_namespace
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_operations import Copy, Demote, Move, Save, TableLog
from kvchat.engine.cache.block_publisher import BlockPublisher
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.pins import Pins
from kvchat.engine.cache.prefix_matcher import PrefixMatch, PrefixMatcher
from kvchat.engine.cache.prefix_reuse import Admission
from kvchat.engine.cache.slow_tiers import SlowTier, SlowTiers
from kvchat.engine.cache.state_snapshots import StateSnapshots
from kvchat.engine.formats.pruned.prune_planner import PrunePlanner
from kvchat.engine.formats.spec import Group
from kvchat.engine.formats.view_schedule import HiddenRange, ViewSchedules
from kvchat.engine.sequences.sequence import BlockTable, KeyChain, Sequence


class CacheManager:
    """Owns the block tables of every live sequence."""

    def __init__(self, device: DeviceTier, *, fingerprint: bytes, slow: SlowTier | None = None) -> None:
        """`slow`: what the disk has; None: there is none."""
        self.device = device
        self.groups = device.groups
        self.block_size = device.block_size
        self.pools = device.pools
        self.index = device.index
        self.host = device.host
        self._references = device.references
        self.root = root_key(fingerprint)
        self._fingerprint = fingerprint
        self.view_schedules = ViewSchedules(device.groups, device.block_size)
        self.sequences: dict[SequenceId, Sequence] = {}
        self._ids = count(1)
        self._bounded = [group for group in device.groups if group.spec.max_visible is not None]
        self.log = TableLog()
        self.admission = Admission(device)
        self.pins = Pins(device)
        self.publisher = BlockPublisher(device, self.log)
        self.pruning = PrunePlanner(device, self.publisher, self.log)
        self.states = StateSnapshots(device, self.log)
        self.disk = slow or SlowTier()
        self.matcher, self._resident_matcher = (
            PrefixMatcher(self.groups, self.block_size, self.index, tiers, self.sequences)
            for tiers in (SlowTiers(self.host, self.disk), SlowTier())
        )

    # Sequences

    def root_of(self, namespace: str) -> BlockKey:
        """Return the parent of the first blocks of a namespace. Pure."""
        return root_key(self._fingerprint, parse_namespace(namespace).shared)

    def open(self, owner: str, token_ids: Iterable[int], namespace: str = "") -> Sequence:
        """Return a new live sequence that holds no block yet; it shares blocks with its namespace alone, and
        over a view only those that are exact.
        """
        ids = list(token_ids)
        sequence = Sequence(
            id=SequenceId(next(self._ids)),
            owner=owner,
            root=self.root_of(namespace),
            token_ids=ids,
            tables=[[] for _ in self.groups],
            namespace=namespace,
            view_schedule=self.view_schedules.of(owner, namespace, len(ids)),
        )
        self.sequences[sequence.id] = sequence
        return sequence

    def fork(self, sequence: Sequence) -> Sequence:
        """Return a new sequence on the same blocks, the tail included. Moves no byte."""
        child = self.open(sequence.owner, sequence.token_ids, sequence.namespace)
        child.priority = sequence.priority
        child.is_saved = sequence.is_saved
        child.computed_len = sequence.computed_len
        child.keys = list(sequence.keys)
        child.chain = KeyChain(list(sequence.chain.names))
        child.view_schedule = sequence.view_schedule
        child.kept_names = dict(sequence.kept_names)
        child.piece = sequence.piece
        # Blocks behind the tail belong to a step that never ended; both would write them.
        for group, table in zip(self.groups, child.tables, strict=True):
            table += sequence.tables[group.id][: self._num_blocks(group, sequence.computed_len)]
            for block in table:
                if block is not None:
                    self._references.share(child, group.id, block)
            self.log.note_from(child, group.id, 0)
        return child

    def release(self, sequence: Sequence) -> None:
        """Let go of a sequence. Its blocks stay cached, its tail as a copy source."""
        self.reset(sequence)
        del self.sequences[sequence.id]
        self._references.forget(sequence.id)
        self.log.drop(sequence.id)

    def reset(self, sequence: Sequence) -> None:
        """Let go of a sequence's blocks; its token ids stay, and it can be admitted again."""
        self.publisher.name_tail(sequence)
        self.states.keep(sequence)
        for group, table in zip(self.groups, sequence.tables, strict=True):
            for block in reversed(table):
                if block is not None:
                    self._references.release(sequence, group.id, block)
            table.clear()
        self.pruning.give_up(sequence)
        sequence.kept_names.clear()
        sequence.computed_len = sequence.num_ahead = 0
        sequence.keys.clear()

    def demote(self, sequence: Sequence) -> tuple[Demote, ...]:
        """Let go of a sequence's blocks, and return the moves that bring those that nobody else holds to host
        memory. What it does not take stays cached.
        """
        for name in self.leave(sequence):
            self.device.demote(*name)
        return self.device.take_demotions()

    def leave(self, sequence: Sequence) -> list[tuple[GroupId, BlockId]]:
        """Let go of a sequence's blocks, which stay cached, and return them: children before their
        parents."""
        held = [
            (group.id, block)
            for group, table in zip(self.groups, sequence.tables, strict=True)
            for block in reversed(table)
            if block is not None
        ]
        self.reset(sequence)
        return held

    def rename(self, fingerprint: bytes) -> None:
        """Name what is computed from now on by other weights. Every sequence lets go of its blocks; those
        keep their names, which none of the new ones equals, and are found again under the old fingerprint.
        Pins are undone, since they would keep blocks that the new weights cannot use.
        """
        self.take_saves()
        self.pins.clear()
        self.root = root_key(fingerprint)
        self._fingerprint = fingerprint
        for sequence in self.sequences.values():
            self.reset(sequence)
            sequence.saved_tail = None
            sequence.root = self.root_of(sequence.namespace)

    # Blocks of a sequence

    def match(self, sequence: Sequence, max_len: int | None = None, *, resident: bool = False) -> PrefixMatch:
        """Return what of an empty sequence's tokens can be reused (`resident`: on the device alone), at most
        `max_len` tokens. Pure.
        """
        matcher = self._resident_matcher if resident else self.matcher
        return matcher.match(sequence, max_len)

    def admit(
        self, sequence: Sequence, match: PrefixMatch, num_following: int = 0
    ) -> tuple[Move, ...] | None:
        """Take the matched blocks into an empty sequence's tables.

        Args:
            num_following: tokens behind the matched ones for which there must be room too.

        Returns:
            The moves that make it complete, or None if there is no room; then nothing has changed.
        """
        assert sequence.computed_len == 0
        assert not any(sequence.tables)
        moves = self.admission.take(sequence, match, num_following)
        if moves is None:
            return None
        for group in self.groups:
            self.log.note_from(sequence, group.id, 0)
        sequence.keys = list(match.keys)
        sequence.kept_names = dict(match.kept_names)
        sequence.computed_len = match.length
        if match.state is not None and sequence.is_saved:
            key = match.state.key
            self.states.save_found(match.state, lambda group: self.disk.has_all([key], group)[0])
        sequence.known_len = max(sequence.known_len, match.tokens_len)
        self.states.plan(sequence)
        sequence.saved_tail = match.partial.key if match.partial and match.partial.is_whole else None
        return self.device.take_demotions() + moves

    def touch(self, sequence: Sequence) -> None:
        """Note that a new request uses what the sequence holds: blocks that are used again are kept
        longer."""
        self.device.num_requests += 1
        for group, table in zip(self.groups, sequence.tables, strict=True):
            for block in table:
                if block is not None:
                    self.pools[group.id].touch(block)
        tail = () if sequence.saved_tail is None else (sequence.saved_tail,)
        self.disk.touch((*sequence.keys, *(key for key, _ in sequence.kept_names.values()), *tail))

    def extend(self, sequence: Sequence, num_tokens: int) -> tuple[Move, ...] | None:
        """Make the slots of the next `num_tokens` tokens writable.

        Returns:
            The copies a shared tail needs before it is written, or None if there is no room; then nothing has
            changed.
        """
        lacking = self._groups_without_room(sequence, num_tokens)
        if lacking:
            inside = sequence.snapshots_within(num_tokens)
            if not inside or not all(group.is_state for group in lacking):
                return None
            # The step is worth more than what it would leave.
            sequence.snapshots_at = tuple(at for at in sequence.snapshots_at if at not in inside)
            return self.extend(sequence, num_tokens)
        moves: list[Move] = []
        for group, table in zip(self.groups, sequence.tables, strict=True):
            moves += self._own_tail(sequence, group)
            start = len(table)
            end = self._num_writable(sequence, group, num_tokens)
            table += [self._references.allocate(sequence, group.id) for _ in range(start, end)]
            if end > start:
                self.log.note_from(sequence, group.id, start)
        self.pruning.prepare(sequence, num_tokens)
        return self.device.take_demotions() + tuple(moves)

    def hidden_ranges(self, sequence: Sequence) -> tuple[tuple[GroupId, tuple[HiddenRange, ...]], ...]:
        """Return what a pruned sequence has lost from sight, in the groups where it has. Pure."""
        if not sequence.view_schedule.prune_points:
            return ()
        view_schedule, length = sequence.view_schedule, sequence.computed_len
        return tuple(
            (group.id, hidden_ranges)
            for group in self.groups
            if (hidden_ranges := view_schedule.hidden_ranges(group, length, self.block_size))
        )

    def commit(self, sequence: Sequence, num_tokens: int) -> None:
        """Record that the next `num_tokens` tokens have been written: name full blocks, drop what left a
        window.
        """
        first, last = len(sequence.keys), (sequence.computed_len + num_tokens) // self.block_size
        prune_point = sequence.view_schedule.next_prune_point(sequence.computed_len)
        is_renamed = prune_point is not None and prune_point.at <= sequence.computed_len + num_tokens
        sequence.computed_len += num_tokens
        sequence.num_ahead = max(0, sequence.num_ahead - num_tokens)
        for number in range(first, last):
            ids = sequence.block_ids(number, self.block_size)
            key = sequence.chain.name(number, sequence.last_key, ids)
            sequence.keys.append(key)
            for group in self.groups:
                self._publish(sequence, group, number)
        if last > first or is_renamed:
            sequence.saved_tail = None
        if sequence.kept:
            self.pruning.carry_out(sequence)
        self.states.advance(sequence, num_tokens)
        for group in self._bounded:
            self._leave_window(sequence, group, sequence.tables[group.id])

    def retract(self, sequence: Sequence) -> None:
        """Let go of blocks behind the last computed token: what was written there is not to be kept."""
        for group, table in zip(self.groups, sequence.tables, strict=True):
            while len(table) > self._num_blocks(group, sequence.computed_len):
                block = table.pop()
                assert block is not None
                self._references.release(sequence, group.id, block)
        self.pruning.give_up(sequence)
        sequence.num_ahead = 0

    # What others carry out

    def take_saves(self) -> tuple[Save, ...]:
        """Return the blocks that were named since the last call, in order."""
        return self.publisher.take_saves() + self.states.take_saves()

    def tail_saves(self, sequence: Sequence) -> tuple[Save, ...]:
        """Return what must be written so that the sequence's tail is stored; nothing if it is. Pure."""
        return self.publisher.tail_saves(sequence) + self.states.saves(sequence)

    def is_resident(self, save: Save) -> bool:
        """Whether the block to be saved still has its name. Pure."""
        return self.pools[save.group].key(save.block) == save.key

    def note_saved(self, save: Save) -> None:
        """Note that a block is on its way to the disk."""
        is_full = len(save.token_ids) == self.block_size
        reason = "it is full" if is_full else "the tail of a branch"
        self.device.events.note(CacheEventKind.SAVE, reason, save.group, save.key, tier=Tier.DISK)

    def check_integrity(self) -> None:
        """Raise AssertionError on any broken invariant."""
        self.device.check_integrity(self.sequences.values(), self.pins.held.elements())

    # Parts of the above

    def _own_tail(self, sequence: Sequence, group: Group) -> Iterable[Move]:
        """Copy the tail before the first write if another table holds it too."""
        number, num_tokens = divmod(sequence.computed_len, self.block_size)
        table, pool = sequence.tables[group.id], self.pools[group.id]
        if not num_tokens or group.source is not None or group.is_state:
            return
        shared = table[number]
        assert shared is not None
        if pool.count(shared) == 1:
            return
        own = table[number] = self._references.allocate(sequence, group.id)
        self._references.hand_over(sequence, group.id, shared)
        self.device.keep_source(group.id, shared)
        self.log.note_one(sequence, group.id, number, own)
        self.device.events.note(
            CacheEventKind.COPY,
            "another branch holds this tail",
            group.id,
            owner=sequence.owner,
            num_tokens=num_tokens,
        )
        yield Copy(group.id, shared, own, num_tokens)

    def _groups_without_room(self, sequence: Sequence, num_tokens: int) -> list[Group]:
        return [
            group
            for group in self.groups
            if self._num_missing(sequence, group, num_tokens) > self.pools[group.id].num_available
        ]

    def _num_missing(self, sequence: Sequence, group: Group, num_tokens: int) -> int:
        table = sequence.tables[group.id]
        missing = self._num_writable(sequence, group, num_tokens) - len(table)
        if sequence.computed_len % self.block_size and group.source is None and not group.is_state:
            tail = table[sequence.computed_len // self.block_size]
            assert tail is not None
            missing += self.pools[group.id].count(tail) > 1
        return missing + self.pruning.num_kept(sequence, group, num_tokens)

    def _publish(self, sequence: Sequence, group: Group, number: int) -> None:
        """Name what a group has as a whole now that block `number` is full."""
        if group.is_state:
            return
        start, end = (self._num_blocks(group, count * self.block_size) for count in (number, number + 1))
        for whole in range(start, end):
            self.publisher.publish(sequence, group, whole)

    def _leave_window(self, sequence: Sequence, group: Group, table: BlockTable) -> None:
        for first, hidden in group.spec.hidden_blocks(sequence.computed_len, self.block_size):
            start = end = min(hidden, len(table))
            while start > first and table[start - 1] is not None:
                start -= 1
            for number in range(start, end):  # what left first is evicted first
                block = table[number]
                assert block is not None
                self._references.release(sequence, group.id, block)
                table[number] = None
                self.device.events.note(
                    CacheEventKind.LEAVE, "it left the window", group.id, owner=sequence.owner
                )

    def _num_writable(self, sequence: Sequence, group: Group, num_tokens: int) -> int:
        """Return how many entries a table has while a step writes the next tokens."""
        if group.is_state:
            num_kept = len(sequence.snapshots_within(num_tokens))
            return self._num_blocks(group, sequence.computed_len) + num_kept + 1
        return self._num_blocks(group, sequence.computed_len + num_tokens)

    def _num_blocks(self, group: Group, num_tokens: int) -> int:
        return group.num_blocks(num_tokens, self.block_size)
