"""Random traces over a cache manager whose every slot is known.

Each slot of the device holds the tokens its KV was computed from. After every rule, all that any sequence
could attend to and all that any name promises must be exactly that: nothing stale, aliased or unwritten
(traps 7, 8, 9, 11, 13, 15, 16, 22 and 28).
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvchat.engine.api.ids import BlockKey, GroupId, SequenceId
from kvchat.engine.cache.block_operations import Move, Save
from kvchat.engine.cache.eviction import Eviction
from kvchat.engine.formats.pool_sizing import window_blocks
from kvchat.engine.formats.spec import Group
from kvchat.engine.sequences.sequence import Sequence
from kvchat.errors import PinRefused
from tests.engine.cache.caches import Cache, chunked_group, full_group, name_of, sliding_group

pytestmark = [pytest.mark.pure, pytest.mark.long]

BLOCK_SIZE = 4
MAX_LEN = 26
MAX_BRANCHES = 6
MAX_CHUNK = 9

token = st.integers(0, 1)
pick = st.integers(0, 1000)

Policy = tuple[Eviction, bool]
"""What makes room, and whether the host tier takes only every other block."""
POLICIES = st.tuples(st.sampled_from(list(Eviction)), st.booleans())


def room_of(sequence: Sequence) -> int:
    """Return how many tokens a sequence may grow by."""
    return max(0, MAX_LEN - len(sequence.token_ids))


class CacheTraces(RuleBasedStateMachine):
    @initialize(
        limited=st.sampled_from(
            [*map(sliding_group, (1, 3, 4, 5, 7, 10)), *map(chunked_group, (3, 4, 6, 8))]
        ),
        num_full=st.integers(7, 12),
        num_sliding=st.integers(7, 9),
        num_places=st.integers(0, 8),
        policy=POLICIES,
    )
    def build(self, limited: Group, num_full: int, num_sliding: int, num_places: int, policy: Policy) -> None:
        self.begin(
            full_group(), limited, num_blocks=[num_full, num_sliding], num_places=num_places, policy=policy
        )

    def begin(self, *groups: Group, num_blocks: list[int], num_places: int, policy: Policy) -> None:
        eviction, is_choosy = policy
        self.cache = Cache(
            *groups,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            num_places=num_places,
            eviction=eviction,
            is_worth=lambda node: not is_choosy or node.key[0] % 2 == 0,
        )
        self.manager, self.device, self.tier = self.cache.manager, self.cache.device, self.cache.tier
        self.admitted: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.sequences: list[tuple[int, ...]] = [()]
        self.tokens_of: dict[BlockKey, tuple[int, ...]] = {}
        self.saves: list[Save] = []
        self.pinned: dict[SequenceId, tuple[BlockKey, ...]] = {}

    # Sequences

    @precondition(lambda self: len(self.manager.sequences) < MAX_BRANCHES)
    @rule(base=pick, keep=st.integers(0, MAX_LEN), suffix=st.lists(token, max_size=12))
    def open(self, base: int, keep: int, suffix: list[int]) -> None:
        known = self.sequences[base % len(self.sequences)]
        tokens = (*known[:keep], *suffix)[:MAX_LEN] or (0,)
        sequence = self.manager.open("someone", tokens)
        self.remember(sequence)
        self.waiting.append(sequence)
        self.admit(sequence)

    @precondition(lambda self: len(self.manager.sequences) < MAX_BRANCHES)
    @rule(
        base=pick,
        keep=st.integers(0, MAX_LEN),
        suffix=st.lists(token, max_size=12),
        answer=st.lists(token, max_size=5),
    )
    def converse(self, base: int, keep: int, suffix: list[int], answer: list[int]) -> None:
        self.open(base, keep, suffix)
        if self.admitted:
            self.turn(-1, answer)

    @precondition(lambda self: self.waiting)
    @rule(which=pick)
    def admit_waiting(self, which: int) -> None:
        self.admit(self.waiting[which % len(self.waiting)])

    @precondition(lambda self: self.admitted and len(self.manager.sequences) < MAX_BRANCHES)
    @rule(which=pick)
    def fork(self, which: int) -> None:
        num_used = [pool.num_used for pool in self.manager.pools.values()]
        child = self.manager.fork(self.admitted[which % len(self.admitted)])
        assert [pool.num_used for pool in self.manager.pools.values()] == num_used
        self.admitted.append(child)

    @precondition(lambda self: len(self.admitted) > 1)
    @rule(which=pick)
    def release(self, which: int) -> None:
        self.manager.release(self.admitted.pop(which % len(self.admitted)))

    @precondition(lambda self: self.admitted)
    @rule(which=pick)
    def reset(self, which: int) -> None:
        self.take_back(self.admitted[which % len(self.admitted)])

    @precondition(lambda self: len(self.admitted) > 2)
    @rule(which=pick, cut=st.integers(1, MAX_LEN), suffix=st.lists(token, min_size=1, max_size=6))
    def reset_to_other_tokens(self, which: int, cut: int, suffix: list[int]) -> None:
        sequence = self.admitted[which % len(self.admitted)]
        self.take_back(sequence)
        sequence.token_ids[cut:] = suffix
        self.remember(sequence)

    # Steps

    @rule(chunk_lens=st.lists(st.integers(0, 12), min_size=MAX_BRANCHES, max_size=MAX_BRANCHES))
    def step(self, chunk_lens: list[int]) -> None:
        chunks: dict[int, tuple[Sequence, int]] = {}
        moves: list[Move] = []
        for sequence, chunk_len in zip(list(self.admitted), chunk_lens, strict=False):
            num_tokens = self.step_len(sequence, chunk_len)
            if num_tokens and sequence in self.admitted:
                moves += self.extend(sequence, num_tokens, chunks)
                chunks[sequence.id] = (sequence, num_tokens)
        self.cache.run(moves, list(chunks.values()))

    @precondition(lambda self: self.admitted)
    @rule(which=pick, answer=st.lists(token, max_size=5))
    def turn(self, which: int, answer: list[int]) -> None:
        """Compute all of one sequence, and an answer of which the last token is not fed."""
        sequence = self.admitted[which % len(self.admitted)]
        self.compute(sequence)
        sequence.token_ids += answer[: room_of(sequence)]
        self.remember(sequence)
        self.compute(sequence, leave=1)

    @precondition(lambda self: self.admitted)
    @rule(which=pick, num_tokens=st.integers(1, 9), num_written=st.integers(0, 9))
    def step_that_is_aborted(self, which: int, num_tokens: int, num_written: int) -> None:
        sequence = self.admitted[which % len(self.admitted)]
        num_tokens = min(num_tokens, sequence.num_uncomputed)
        moves = self.extend(sequence, num_tokens, {})
        self.cache.carry_out(moves)
        self.device.apply(*self.manager.log.take())
        start = sequence.computed_len
        self.device.write(sequence, start, start + min(num_written, num_tokens))
        self.take_back(sequence)

    @precondition(lambda self: any(sequence.num_uncomputed for sequence in self.admitted))
    @rule(which=pick, draft=st.lists(token, min_size=1, max_size=9), num_right=st.integers(0, 9))
    def step_with_a_draft(self, which: int, draft: list[int], num_right: int) -> None:
        """Compute the last token and a guess behind it, of which the first tokens are right."""
        due = [sequence for sequence in self.admitted if sequence.num_uncomputed]
        sequence = due[which % len(due)]
        self.compute(sequence, leave=1)
        del draft[room_of(sequence) :]
        start, end = sequence.computed_len, sequence.computed_len + 1 + len(draft)
        self.cache.carry_out(self.extend(sequence, end - start, {}))
        self.device.apply(*self.manager.log.take())
        self.device.write(sequence, start, end, draft)
        self.device.check_seen(sequence, start, end, draft)
        self.manager.commit(sequence, 1)
        for chosen in draft[:num_right]:
            sequence.token_ids.append(chosen)
            self.manager.commit(sequence, 1)
        self.manager.retract(sequence)
        self.remember(sequence)

    @precondition(lambda self: self.admitted and len(self.manager.sequences) < MAX_BRANCHES)
    @rule(which=pick, written=token)
    def step_whose_source_is_given_up(self, which: int, written: int) -> None:
        """Between plan and execution the sequence that held the tail goes, and its block is wanted."""
        parent = self.admitted[which % len(self.admitted)]
        self.fork(which)
        child = self.admitted[-1]
        child.token_ids[child.computed_len :] = [written]
        self.remember(child)
        moves = self.extend(child, 1, {})
        if parent in self.admitted:
            self.take_back(parent)
        self.cache.evict_unheld()
        self.cache.run(moves, [(child, 1)])

    @precondition(lambda self: any(not sequence.num_uncomputed for sequence in self.admitted))
    @rule(which=pick, tokens=st.lists(token, min_size=1, max_size=5))
    def append(self, which: int, tokens: list[int]) -> None:
        computed = [sequence for sequence in self.admitted if not sequence.num_uncomputed]
        sequence = computed[which % len(computed)]
        sequence.token_ids += tokens[: room_of(sequence)]
        self.remember(sequence)

    @precondition(lambda self: self.admitted)
    @rule(which=pick)
    def use_again(self, which: int) -> None:
        self.manager.touch(self.admitted[which % len(self.admitted)])

    # Pins, and other tiers

    @precondition(lambda self: self.admitted)
    @rule(which=pick)
    def pin(self, which: int) -> None:
        sequence = self.admitted[which % len(self.admitted)]
        before = self.manager.pins.held.copy()
        try:
            self.manager.pins.pin(sequence)
        except PinRefused:
            assert self.manager.pins.held == before
        else:
            self.pinned[sequence.id] = tuple(sequence.keys)

    @precondition(lambda self: self.pinned)
    @rule(which=pick)
    def unpin(self, which: int) -> None:
        sequence = list(self.pinned)[which % len(self.pinned)]
        del self.pinned[sequence]
        self.manager.pins.unpin(sequence)

    @precondition(lambda self: self.admitted)
    @rule(which=pick)
    def demote(self, which: int) -> None:
        sequence = self.admitted[which % len(self.admitted)]
        self.admitted.remove(sequence)
        self.waiting.append(sequence)
        length = self.matched_len(sequence)
        self.cache.demote(sequence)
        assert self.manager.match(sequence).length >= length, "what is demoted is lost"

    @rule(num_lost=st.integers(0, 2))
    def save_blocks(self, num_lost: int) -> None:
        self.saves += self.manager.take_saves()
        del self.saves[:num_lost]
        self.cache.store(filter(self.manager.is_resident, self.saves))
        self.saves.clear()

    @precondition(lambda self: self.admitted)
    @rule(which=pick)
    def save_sequence(self, which: int) -> None:
        sequence = self.admitted[which % len(self.admitted)]
        self.cache.store_sequence(sequence)

    @precondition(lambda self: len(self.sequences) > 4)
    @rule(num_saved=st.integers(1, MAX_BRANCHES))
    def leave_the_device(self, num_saved: int) -> None:
        """Save some sequences, release all and evict what is cached."""
        for which in range(min(num_saved, len(self.admitted))):
            self.save_sequence(which)
        while self.admitted:
            self.release(0)
        self.cache.forget_device()

    @precondition(lambda self: self.tier.contents)
    @rule(which=pick)
    def damage(self, which: int) -> None:
        self.tier.unreadable.add(list(self.tier.contents)[which % len(self.tier.contents)])

    @precondition(lambda self: self.tier.contents)
    @rule(which=pick)
    def lose(self, which: int) -> None:
        del self.tier.contents[list(self.tier.contents)[which % len(self.tier.contents)]]

    # What must always hold

    @invariant()
    def every_slot_in_sight_is_right(self) -> None:
        self.device.poison_free_blocks()
        for sequence in self.manager.sequences.values():
            self.device.check_held(sequence)
        self.device.check_named(self.tokens_of)

    @invariant()
    def accounts_are_in_order(self) -> None:
        self.manager.check_integrity()
        for pool in self.manager.pools.values():
            assert pool.num_free + pool.num_cached + pool.num_used == pool.num_blocks
        for sequence in self.waiting:
            assert not any(sequence.tables)

    @invariant()
    def a_full_groups_blocks_have_their_parents(self) -> None:
        for node in self.manager.index:
            if GroupId(0) in node.blocks and node.parent != self.manager.root:
                assert self.manager.index.block(node.parent, GroupId(0)) is not None

    @invariant()
    def pinned_blocks_are_there(self) -> None:
        for keys in self.pinned.values():
            assert all(self.manager.index.block(key, GroupId(0)) is not None for key in keys)
        for group, pool in self.manager.pools.items():
            num_pinned = self.manager.pins.num_pinned(group)
            assert num_pinned == sum(of == group for of, _ in self.manager.pins.held)
            assert num_pinned <= pool.num_blocks // 2

    @invariant()
    def a_sequence_holds_no_more_than_its_window(self) -> None:
        max_visible = self.manager.groups[1].spec.max_visible
        assert max_visible is not None
        for sequence in self.admitted:
            held = [block for block in sequence.tables[1] if block is not None]
            assert len(held) <= window_blocks(max_visible, BLOCK_SIZE)

    # Parts of the rules

    def admit(self, sequence: Sequence) -> None:
        """Admit as an engine does that has nothing else to do."""
        match = self.manager.match(sequence)
        assert match == self.manager.match(sequence)
        assert match.length < len(sequence.token_ids)
        num_stored = len(self.tier.contents)
        if self.cache.admit(sequence):
            was_damaged = len(self.tier.contents) < num_stored
            assert was_damaged or sequence.computed_len == match.length
            self.waiting.remove(sequence)
            self.admitted.append(sequence)

    def extend(
        self, sequence: Sequence, num_tokens: int, chunks: dict[int, tuple[Sequence, int]]
    ) -> tuple[Move, ...]:
        """Make slots writable, at the cost of other sequences and of their part in this step."""
        num_known = [len(table) for table in sequence.tables]
        while (moves := self.manager.extend(sequence, num_tokens)) is None:
            victim = next((other for other in self.admitted if other is not sequence), None)
            if victim is None:
                assert self.pinned, "the last sequence has no room"
                self.unpin(0)
            else:
                chunks.pop(victim.id, None)
                self.take_back(victim)
        self.device.plan(moves)
        for group, table, known in zip(self.manager.groups, sequence.tables, num_known, strict=True):
            for block in table[known:]:
                assert block is not None
                self.device.poison(group.id, block)
        return moves

    def compute(self, sequence: Sequence, leave: int = 0) -> None:
        """Compute a sequence in chunks until `leave` tokens are left."""
        while sequence.num_uncomputed > leave:
            num_tokens = self.step_len(sequence, MAX_CHUNK, leave)
            moves = self.extend(sequence, num_tokens, {})
            self.cache.run(moves, [(sequence, num_tokens)])

    def step_len(self, sequence: Sequence, most: int, leave: int = 0) -> int:
        num_due = sequence.num_uncomputed - leave
        return sequence.step_len(min(most, num_due), num_due)

    def matched_len(self, sequence: Sequence) -> int:
        """Return how many of a sequence's tokens another one like it would find."""
        probe = self.manager.open("probe", sequence.token_ids)
        length = self.manager.match(probe, sequence.computed_len).length
        self.manager.release(probe)
        return length

    def take_back(self, sequence: Sequence) -> None:
        self.manager.reset(sequence)
        self.admitted.remove(sequence)
        self.waiting.append(sequence)

    def remember(self, sequence: Sequence) -> None:
        tokens = tuple(sequence.token_ids)
        self.sequences.append(tokens)
        for end in range(1, len(tokens) + 1):
            self.tokens_of[name_of(tokens[:end], BLOCK_SIZE)] = tokens[:end]


FEW = settings(
    max_examples=60,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
MANY = settings(FEW, max_examples=3000, derandomize=False, stateful_step_count=80)


class TestTraces(CacheTraces.TestCase):  # type: ignore[name-defined,misc]
    settings = FEW


@pytest.mark.slow
class TestManyTraces(CacheTraces.TestCase):  # type: ignore[name-defined,misc]
    settings = MANY
