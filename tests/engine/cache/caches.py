"""Small caches to test bookkeeping with: groups, a slower tier, a device whose slots know their content."""

from collections import Counter, abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId, SequenceId, block_key, chain_keys, root_key
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_operations import Demote, Fetch, Load, Move, Promote, Save, TableChange
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.eviction import Eviction
from kvchat.engine.cache.host_tier import HostTier
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.cache.prefix_index import IndexNode
from kvchat.engine.cache.prefix_matcher import PrefixMatch
from kvchat.engine.cache.slow_tiers import TierNode
from kvchat.engine.formats.chunked.spec import ChunkedSpec
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.quantized.spec import QuantizedSpec, ResidualSpec
from kvchat.engine.formats.recurrent.spec import StateTensor, state_spec
from kvchat.engine.formats.sliding.spec import SlidingSpec
from kvchat.engine.formats.spec import Group
from kvchat.engine.kernels.quantized_record import Code
from kvchat.engine.memory.rates import Rates
from kvchat.engine.sequences.sequence import Sequence
from kvchat.engine.tiering.in_flight_loads import InFlightLoad, InFlightLoads
from tests.engine.stepped_reader import SteppedReader

FINGERPRINT = b"\x07" * 32
ROOT = root_key(FINGERPRINT)
UNWRITTEN = ("unwritten",)

Content = tuple[int | str, ...]
"""What a slot holds: the token ids up to its own, which its KV is a function of."""


def full_group(group_id: int = 0) -> Group:
    spec = FullSpec(num_kv_heads=1, head_dim_k=2, head_dim_v=2, dtype="F32")
    return Group(id=GroupId(group_id), spec=spec, layers=(group_id,))


def sliding_group(window_len: int, group_id: int = 1) -> Group:
    spec = SlidingSpec(num_kv_heads=1, head_dim_k=2, head_dim_v=2, dtype="F32", window_len=window_len)
    return Group(id=GroupId(group_id), spec=spec, layers=(group_id,))


def chunked_group(chunk_len: int, group_id: int = 1) -> Group:
    spec = ChunkedSpec(num_kv_heads=1, head_dim_k=2, head_dim_v=2, dtype="F32", chunk_len=chunk_len)
    return Group(id=GroupId(group_id), spec=spec, layers=(group_id,))


def quantized_group(block_size: int) -> Group:
    """The quantised blocks of a layer whose recent ones are in `recent_group`."""
    spec = QuantizedSpec(
        num_kv_heads=1,
        head_dim_k=2,
        head_dim_v=2,
        dtype="U8",
        key_code=Code.INT8,
        value_code=Code.INT8,
        block_size=block_size,
    )
    return Group(id=GroupId(0), spec=spec, layers=(0,), source=GroupId(1))


def recent_group(block_size: int) -> Group:
    spec = ResidualSpec(num_kv_heads=1, head_dim_k=2, head_dim_v=2, dtype="F32", block_size=block_size)
    return Group(id=GroupId(1), spec=spec, layers=(0,))


def state_group(group_id: int = 1, piece: int = 1) -> Group:
    """A layer that keeps one state of all tokens so far."""
    spec = state_spec([StateTensor("rec", 0, "F32", (2,))], piece)
    return Group(id=GroupId(group_id), spec=spec, layers=(group_id,))


def name_of(token_ids: abc.Sequence[int], block_size: int) -> BlockKey:
    """Return the key of the last block or tail of `token_ids`."""
    start = (len(token_ids) - 1) // block_size * block_size
    keys = chain_keys(ROOT, token_ids[:start], block_size)
    return block_key(keys[-1] if keys else ROOT, token_ids[start:])


@dataclass(slots=True)
class FakeTier:
    """A slower tier in a dictionary. Blocks can be lost or damaged without its list of contents knowing."""

    contents: dict[tuple[BlockKey, GroupId], list[Content]] = field(default_factory=dict)
    nodes: dict[BlockKey, tuple[BlockKey, tuple[int, ...]]] = field(default_factory=dict)
    unreadable: set[tuple[BlockKey, GroupId]] = field(default_factory=set)
    touched: list[BlockKey] = field(default_factory=list)

    def has_all(self, keys: abc.Sequence[BlockKey], group: GroupId) -> abc.Sequence[bool]:
        return [(key, group) in self.contents for key in keys]

    def nearest(self, parent: BlockKey, token_ids: abc.Sequence[int], most: int) -> abc.Sequence[TierNode]:
        behind = sorted((ids, key) for key, (node_parent, ids) in self.nodes.items() if node_parent == parent)
        groups = {group for _, group in self.contents}
        there = {
            key: found
            for _, key in behind
            if (found := frozenset(group for group in groups if (key, group) in self.contents))
        }
        behind = [(ids, key) for ids, key in behind if key in there]
        place = sum(ids < tuple(token_ids) for ids, _ in behind)
        near = behind[max(0, place - most) : place + most]
        return [TierNode(key, ids, there[key]) for ids, key in near]

    def touch(self, keys: Iterable[BlockKey]) -> None:
        self.touched += keys

    def write(self, save: Save, contents: abc.Sequence[Content]) -> None:
        self.contents[save.key, save.group] = list(contents)
        self.nodes[save.key] = (save.parent, save.token_ids)
        self.unreadable.discard((save.key, save.group))
        if save.replaces is not None and save.replaces != save.key:
            self.contents.pop((save.replaces, save.group), None)

    def read(self, load: Load) -> list[Content] | None:
        """Return a block's slots, or None if it is gone or damaged; then it is not offered again."""
        assert self.nodes[load.key] == (load.parent, load.token_ids)
        if (load.key, load.group) in self.unreadable:
            self.contents.pop((load.key, load.group), None)
        return self.contents.get((load.key, load.group))


class FakeDevice:
    """Slots that hold what wrote them, and block tables that know only the reported changes."""

    def __init__(self, manager: CacheManager, tier: FakeTier) -> None:
        self.manager = manager
        self.tier = tier
        self.tables: dict[tuple[SequenceId, GroupId], dict[int, BlockId]] = {}
        self.places: dict[tuple[GroupId, BlockId], list[Content]] = {}
        self.planned: set[tuple[GroupId, BlockId]] = set()
        """Blocks whose bytes a planned move has still to copy to host memory; nothing writes them before."""
        self.slots: dict[tuple[GroupId, BlockId], list[Content]] = {
            (group, BlockId(index)): [UNWRITTEN] * manager.block_size
            for group, pool in manager.pools.items()
            for index in range(pool.num_blocks)
        }

    def execute(self, moves: Iterable[Move]) -> None:
        """Carry out moves in order."""
        for move in moves:
            if isinstance(move, Demote):
                self.places[move.group, move.place] = list(self.slots[move.group, move.source])
                self.planned.discard((move.group, move.source))
                self.poison(move.group, move.source)
            else:
                assert move.source != move.target
                self._fill(move.group, move.target, self.slots[move.group, move.source][: move.num_tokens])

    def fetch(self, move: Fetch) -> bool:
        """Bring a block from a slower tier; False if it is not to be had."""
        if isinstance(move, Promote):
            contents: abc.Sequence[Content] | None = self.places[move.group, move.place]
        else:
            contents = self.tier.read(move)
        self._fill(move.group, move.target, contents or ())
        return contents is not None

    def plan(self, moves: Iterable[Move]) -> None:
        """Note the moves of a step that is still being put together."""
        self.planned |= {(move.group, move.source) for move in moves if isinstance(move, Demote)}

    def poison(self, group: GroupId, block: BlockId) -> None:
        """Make a block's bytes worthless, unless a planned move is to copy them first."""
        if (group, block) not in self.planned:
            self.slots[group, block] = [UNWRITTEN] * self.manager.block_size

    def poison_free_blocks(self) -> None:
        for group, block in self.slots:
            pool = self.manager.pools[group]
            if pool.count(block) == 0 and pool.key(block) is None:
                self.poison(group, block)

    def apply(self, changes: Iterable[TableChange], dropped: Iterable[SequenceId]) -> None:
        for change in changes:
            table = self.tables.setdefault((change.sequence, change.group), {})
            table.update(enumerate(change.block_ids, start=change.start))
        for sequence in dropped:
            for group in self.manager.pools:
                self.tables.pop((sequence, group), None)

    def write(self, sequence: Sequence, start: int, end: int, draft: abc.Sequence[int] = ()) -> None:
        """Write the KV of tokens `[start, end)` of a sequence and its draft through the reported tables."""
        text = [*sequence.token_ids, *draft]
        for group in [one.id for one in self.manager.groups if one.source is None and not one.is_state]:
            pool = self.manager.pools[group]
            for position in range(start, end):
                number, offset = divmod(position, self.manager.block_size)
                block = self.tables[sequence.id, group][number]
                assert pool.key(block) is None, "a named block is written"
                assert self._num_tables(group, block) == 1, "a block of several sequences is written"
                self.slots[group, block][offset] = tuple(text[: position + 1])

        for other in self.manager.groups:
            if other.source is not None:
                self._quantize(sequence, other, other.source, (start, end))
            elif other.is_state and end > start:
                self._go_on(sequence, other.id, text, (start, end))

    def _go_on(
        self, sequence: Sequence, group: GroupId, text: abc.Sequence[int], written: tuple[int, int]
    ) -> None:
        """Write the state behind tokens into another block than the one before them, which is read."""
        start, end = written
        table = self.tables[sequence.id, group]
        if start:
            assert self.slots[group, table[0]][0] == tuple(text[:start]), "a state of other tokens is read"
        stops = (*sequence.snapshots_within(end - start), end)
        for number, stop in enumerate(stops, start=bool(start)):
            target = table[number]
            assert self.manager.pools[group].key(target) is None, "a named state is written"
            assert self._num_tables(group, target) == 1, "a state of several sequences is written"
            self.slots[group, target][0] = tuple(text[:stop])

    def _quantize(
        self, sequence: Sequence, quantized: Group, recent: GroupId, written: tuple[int, int]
    ) -> None:
        """Bring the blocks that become old with the tokens `[start, end)` to their place among the others."""
        first, last = (quantized.num_blocks(length, self.manager.block_size) for length in written)
        for number in range(first, last):
            source, target = (self.tables[sequence.id, group][number] for group in (recent, quantized.id))
            assert self.manager.pools[quantized.id].key(target) is None, "a named block is quantized"
            assert self._num_tables(quantized.id, target) == 1, "a block of several sequences is quantized"
            self.slots[quantized.id, target] = list(self.slots[recent, source])

    def check_seen(self, sequence: Sequence, start: int, end: int, draft: abc.Sequence[int] = ()) -> None:
        """Assert that queries `[start, end)` see the right content through the reported tables."""
        text = [*sequence.token_ids, *draft]
        for group in [group for group in self.manager.groups if not group.is_state]:
            for position in range(group.spec.first_visible(start), self._end_in(group, end)):
                number, offset = divmod(position, self.manager.block_size)
                block = self.tables[sequence.id, group.id][number]
                right = tuple(text[: position + 1])
                assert self.slots[group.id, block][offset] == right, f"wrong content at {position}"

    def check_held(self, sequence: Sequence) -> None:
        """Assert that all a sequence's next query sees is in its own tables."""
        for group in self.manager.groups:
            if group.is_state:
                for block in sequence.tables[group.id][:1]:
                    assert block is not None
                    right = tuple(sequence.token_ids[: sequence.computed_len])
                    assert self.slots[group.id, block][0] == right, "a state of other tokens is held"
                continue
            end = self._end_in(group, sequence.computed_len)
            for position in range(group.spec.first_visible(sequence.computed_len), end):
                number, offset = divmod(position, self.manager.block_size)
                block = sequence.tables[group.id][number]
                assert block is not None, f"a hidden_range at {position}"
                right = tuple(sequence.token_ids[: position + 1])
                assert self.slots[group.id, block][offset] == right, f"wrong content at {position}"

    def check_named(self, tokens_of: dict[BlockKey, tuple[int, ...]]) -> None:
        """Assert that every named block holds what its name says, on every tier."""
        for group, pool in self.manager.host.pools.items():
            for place in map(BlockId, range(pool.num_blocks)):
                key = pool.key(place)
                if key is not None:
                    right = self._right(group, tokens_of[key])
                    assert self.places[group, place][: len(right)] == right
        for node in self.manager.index:
            for group, block in node.blocks.items():
                right = self._right(group, tokens_of[node.key])
                assert self.slots[group, block][: len(right)] == right
        for (key, group), contents in self.tier.contents.items():
            assert contents == self._right(group, tokens_of[key])

    def _end_in(self, group: Group, num_tokens: int) -> int:
        """Return how many of the first tokens a group has once they are computed."""
        size = self.manager.block_size
        return min(num_tokens, size * group.num_blocks(num_tokens, size))

    def _fill(self, group: GroupId, block: BlockId, contents: abc.Sequence[Content]) -> None:
        self.poison(group, block)
        self.slots[group, block][: len(contents)] = contents

    def _right(self, group: GroupId, tokens: Content) -> list[Content]:
        """Return what a block or tail holds that ends with some tokens."""
        if self.manager.groups[group].is_state:
            return [tokens]
        start = (len(tokens) - 1) // self.manager.block_size * self.manager.block_size
        return [tokens[: end + 1] for end in range(start, len(tokens))]

    def _num_tables(self, group: GroupId, block: BlockId) -> int:
        return sum(sequence.tables[group].count(block) for sequence in self.manager.sequences.values())


@dataclass(slots=True, init=False)
class Cache:
    """A manager with a device and a slower tier around it, driven as an engine drives them."""

    manager: CacheManager
    device: FakeDevice
    tier: FakeTier
    reader: SteppedReader
    flights: InFlightLoads

    def __init__(
        self,
        *groups: Group,
        num_blocks: int | abc.Sequence[int] = 32,
        block_size: int = 4,
        num_places: int = 0,
        eviction: Eviction = Eviction.S3FIFO,
        is_worth: Callable[[IndexNode], bool] = lambda _: True,
    ) -> None:
        counts = [num_blocks] * len(groups) if isinstance(num_blocks, int) else num_blocks
        self.tier = FakeTier()
        device = DeviceTier(
            groups,
            {group.id: count for group, count in zip(groups, counts, strict=True)},
            block_size=block_size,
            host=HostTier(groups, {group.id: num_places for group in groups}, eviction, is_worth),
            eviction=eviction,
        )
        self.manager = CacheManager(device, fingerprint=FINGERPRINT, slow=self.tier)
        self.device = FakeDevice(self.manager, self.tier)
        self.reader = SteppedReader(self.device.fetch)
        self.flights = InFlightLoads(device, self.reader, Rates(), self.carry_out)

    def open(self, token_ids: abc.Sequence[int]) -> Sequence:
        return self.manager.open("someone", token_ids)

    def carry_out(self, moves: Iterable[Move]) -> None:
        self.device.execute(moves)
        self.manager.device.finish_moves()

    def admit(self, sequence: Sequence) -> bool:
        """Fill a sequence's tables with what is cached, after bringing all of it to the device; a block that
        cannot be read makes it match again.
        """
        flight: InFlightLoad | None = None
        while self.missing_bytes(match := self.manager.match(sequence), sequence):
            flight = self.bring(match, sequence)
            if flight is None:
                return False
            if flight.is_complete:
                break
            self.flights.leave(flight)
        moves = self.manager.admit(sequence, self.manager.match(sequence, resident=True))
        if moves is not None:
            self.carry_out(moves)
        if flight is not None:
            self.flights.leave(flight)
        return moves is not None

    def missing_bytes(self, match: PrefixMatch, sequence: Sequence) -> Counter[Tier]:
        """Return what of a match is not on the device, by the tier that has it."""
        return self.flights.missing_bytes(match, sequence.root)

    def bring(self, match: PrefixMatch, sequence: Sequence) -> InFlightLoad | None:
        """Bring a match to the device, where it is held until somebody leaves the flight; None: no room."""
        flight = self.flights.begin(match, sequence.root)
        while flight is not None and not flight.is_over:
            self.flights.wait(0)
            self.flights.collect()
        return flight

    def compute(self, sequence: Sequence, num_tokens: int | None = None, chunk_len: int = 9) -> None:
        """Compute the next `num_tokens` tokens, or all, in chunks."""
        left = sequence.num_uncomputed if num_tokens is None else num_tokens
        while left:
            moves = self.manager.extend(sequence, min(left, chunk_len))
            assert moves is not None
            self.run(moves, [(sequence, min(left, chunk_len))])
            left -= min(left, chunk_len)

    def run(self, moves: Iterable[Move], chunks: abc.Sequence[tuple[Sequence, int]]) -> None:
        """Carry out a step whose slots are writable: move, write, look, commit."""
        self.carry_out(moves)
        self.device.apply(*self.manager.log.take())
        for sequence, num_tokens in chunks:
            self.device.write(sequence, sequence.computed_len, sequence.computed_len + num_tokens)
        for sequence, num_tokens in chunks:
            self.device.check_seen(sequence, sequence.computed_len, sequence.computed_len + num_tokens)
        for sequence, num_tokens in chunks:
            self.manager.commit(sequence, num_tokens)

    def computed(self, token_ids: abc.Sequence[int]) -> Sequence:
        """Return a live sequence all of whose tokens are computed."""
        sequence = self.open(token_ids)
        assert self.admit(sequence)
        self.compute(sequence)
        return sequence

    def matched_len(self, token_ids: abc.Sequence[int]) -> int:
        """Return how many of a prompt's tokens would be reused."""
        sequence = self.open(token_ids)
        length = self.manager.match(sequence).length
        self.manager.release(sequence)
        return length

    def demote(self, sequence: Sequence) -> None:
        """Take a sequence's blocks off the device, as far as host memory takes them."""
        moves = self.manager.demote(sequence)
        self.device.plan(moves)
        self.device.poison_free_blocks()
        self.carry_out(moves)

    def store(self, saves: Iterable[Save]) -> None:
        for save in saves:
            slots = self.device.slots[save.group, save.block]
            num = 1 if self.manager.groups[save.group].is_state else len(save.token_ids)
            self.tier.write(save, slots[:num])

    def store_sequence(self, sequence: Sequence) -> None:
        """Save all that a sequence holds."""
        self.store(self.manager.publisher.block_saves(sequence))
        tails = self.manager.tail_saves(sequence)
        self.store(tails)
        if tails:
            sequence.saved_tail = tails[0].key

    def leave_on_disk(self, token_ids: abc.Sequence[int]) -> Sequence:
        """Compute a sequence, save all of it and leave nothing on the device."""
        sequence = self.computed(token_ids)
        self.store_sequence(sequence)
        self.manager.release(sequence)
        self.forget_device()
        return sequence

    def forget_device(self) -> None:
        """Evict every block that no sequence holds."""
        self.evict_unheld()
        self.manager.device.finish_moves()

    def evict_unheld(self) -> None:
        """Evict every block that no sequence and no planned move holds."""
        for pool in self.manager.pools.values():
            for block in [pool.allocate() for _ in range(pool.num_available)]:
                pool.release(block)
        self.device.execute(self.manager.device.take_demotions())
        self.device.poison_free_blocks()

    def num_used(self) -> list[int]:
        return [pool.num_used for pool in self.manager.pools.values()]

    def check(self) -> None:
        """Assert that the books are in order and that every sequence would see the right content."""
        self.device.poison_free_blocks()
        self.manager.check_integrity()
        self.flights.check_integrity()
        for sequence in self.manager.sequences.values():
            self.device.check_held(sequence)
