"""In-flight loads: what of a match is not on the device yet, brought by the reader and held until it is used.

A load holds each block of its match: those that are on the device already, those that are to be written, and
the places in host memory they are read from. So nothing of it can be evicted or handed out while bytes move,
whatever becomes of the request that wanted it. A block gets its name when its bytes have arrived and are
verified; from then on it is found like any other.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from kvchat.engine.api.cache_events import CacheEventKind
from kvchat.engine.api.ids import BlockId, BlockKey, GroupId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_operations import Fetch, Load, LoadUnit, Move, Promote
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.prefix_index import IndexNode
from kvchat.engine.cache.prefix_matcher import PrefixMatch
from kvchat.engine.formats.view_schedule import kept_name
from kvchat.engine.memory.rates import Direction, Rates
from kvchat.engine.memory.reader import Job, Reader

Held = tuple[GroupId, BlockId]


@dataclass(slots=True, eq=False)
class InFlightLoad:
    """The blocks of one match, held until the load is left. `match`: what was matched when it began."""

    match: PrefixMatch
    job: Job = field(init=False)
    held: dict[int, list[Held]] = field(default_factory=dict)
    """Device blocks by the number of the block in the prompt."""
    lent: list[Held] = field(default_factory=list)
    """Places in host memory."""
    has_brought_any: bool = False
    """Whether a block has arrived."""
    first_failed: int | None = None
    """Number of the first block that was damaged or gone."""
    has_ended: bool = False
    _bytes_left: list[dict[Tier, int]] = field(init=False)

    def start(self, job: Job) -> None:
        """Note the job that carries it out."""
        self.job = job
        left = [{Tier.HOST: 0, Tier.DISK: 0}]
        for unit in reversed(job.units):
            left.append(left[-1] | {unit.tier: left[-1][unit.tier] + unit.num_bytes})
        self._bytes_left = left[::-1]

    @property
    def is_over(self) -> bool:
        return self.job.is_over

    @property
    def is_complete(self) -> bool:
        """Whether all that has landed is there."""
        return self.first_failed is None

    def bytes_left(self, num_taken: int) -> Mapping[Tier, int]:
        """Return what is left to move behind the first `num_taken` units, by the tier it comes from. O(1),
        since every step asks. Pure.
        """
        return self._bytes_left[num_taken]


@dataclass(frozen=True, slots=True)
class _Piece:
    """One group's part of a matched block: where it is, None where it is not."""

    number: int
    node: IndexNode
    group: GroupId
    block: BlockId | None
    place: BlockId | None


class InFlightLoads:
    """Owned by the engine's thread; only the reader behind it has one of its own."""

    def __init__(
        self, device: DeviceTier, reader: Reader, rates: Rates, carry_out: Callable[[Sequence[Move]], None]
    ) -> None:
        self._device = device
        self._reader = reader
        self._rates = rates
        self._carry_out = carry_out
        self._loads: dict[Job, InFlightLoad] = {}
        self._leaving: list[InFlightLoad] = []
        self._flying: dict[BlockKey, InFlightLoad] = {}
        """By the names of the blocks that have not landed."""

    @property
    def under_way(self) -> tuple[InFlightLoad, ...]:
        """The loads that hold blocks, those that have landed included, in the order in which they began."""
        return tuple(self._loads.values())

    @property
    def is_busy(self) -> bool:
        """Whether bytes are on their way."""
        return any(not load.is_over for load in self._loads.values())

    def in_the_way(self, match: PrefixMatch) -> InFlightLoad | None:
        """Return a load that is bringing a block of the match and has not brought it yet. Pure."""
        return next((self._flying[key] for key in match.all_keys if key in self._flying), None)

    def missing_bytes(self, match: PrefixMatch, root: BlockKey) -> Counter[Tier]:
        """Return what a match lacks on the device, by the tier it comes from; nothing where it lacks none.
        Pure.
        """
        num_bytes: Counter[Tier] = Counter()
        for piece in self._pieces(match, root):
            if piece.block is None:
                tier = Tier.DISK if piece.place is None else Tier.HOST
                num_bytes[tier] += self._device.block_bytes[piece.group]
        return num_bytes

    def lacking(self, match: PrefixMatch, root: BlockKey) -> GroupId | None:
        """Return a group with too few blocks for `begin`; None if there is room. Pure."""
        pieces = list(self._pieces(match, root))
        return self._lacking(pieces, _present(pieces))

    def begin(
        self, match: PrefixMatch, root: BlockKey, *, spared: Sequence[BlockKey] = (), is_urgent: bool = True
    ) -> InFlightLoad | None:
        """Begin to bring a match to the device; None if there is no room, there or in the reader's queue.
        Evicts blocks that nobody holds.

        Args:
            root: parent of the first block.
            spared: keys of blocks that must not be evicted for it.
        """
        device = self._device
        pieces = list(self._pieces(match, root))
        present = _present(pieces)
        present |= dict.fromkeys(held for key in spared for held in self._resident(key))
        if self._lacking(pieces, present) is not None:
            return None
        device.num_transfer_changes += 1
        load = InFlightLoad(match)
        units = self._hold_all(load, pieces, present)
        self._carry_out(device.take_demotions())  # before the first block is written
        job = self._reader.submit(units, is_urgent=is_urgent)
        if job is None:
            self._let_go(load)
            return None
        load.start(job)
        self._loads[job] = load
        self._flying |= {unit.node.key: load for unit in units}
        return load

    def leave_prefetches(self) -> None:
        """Let go of the loads that no request waits for."""
        for load in list(self._loads.values()):
            if not load.job.is_urgent:
                self.leave(load)

    def claim(self, load: InFlightLoad, end: int) -> int:
        """Let the blocks before number `end` be computed instead, as far as none of them is being read, and
        return the number of the first that is not.
        """
        before = load.job.front
        front = self._reader.claim(load.job, end)
        for number in range(before, front):
            self._device.num_transfer_changes += 1
            for group, block in load.held.pop(number, ()):
                self._release(group, block)
        return front

    def collect(self) -> None:
        """Name what has landed; end the loads that nobody waits for any more. Never waits."""
        for landed in self._reader.collect():
            load, unit = self._loads[landed.job], landed.unit
            self._land(load, unit, landed.arrived)
            if all(landed.arrived):
                load.has_brought_any = True
                self._note(unit, "a request waits for it" if load.job.is_urgent else "ahead of use")
                self._rates.observe_move(unit.tier, Direction.LOAD, unit.num_bytes, landed.seconds)
            else:
                self._note(unit, "damaged or gone: it is computed")
        for load in [load for load in self._leaving if load.is_over]:
            self._leaving.remove(load)
            self._end(load)

    def leave(self, load: InFlightLoad) -> None:
        """Let go of a load: now if it is over, else as soon as the block being read has landed."""
        if load.has_ended or load in self._leaving:
            return
        self._reader.cancel(load.job)
        if load.is_over:
            self._end(load)
        else:
            self._leaving.append(load)

    def wait(self, timeout_s: float) -> None:
        """Wait for the next block to land."""
        self._reader.wait(timeout_s)

    def close(self) -> None:
        """Wait for the reader to end, and let go of everything."""
        for load in list(self._loads.values()):
            self.leave(load)
        self._reader.close()
        self.collect()

    def check_integrity(self) -> None:
        """Assert that loads hold what is held, and that only their blocks are on their way."""
        loads = self._loads.values()
        blocks = (held for load in loads for held in chain.from_iterable(load.held.values()))
        assert Counter(blocks) == self._device.held
        assert set(self._flying.values()) <= set(loads)

    def _hold_all(
        self, load: InFlightLoad, pieces: Sequence[_Piece], present: Iterable[Held]
    ) -> tuple[LoadUnit, ...]:
        """Hold a match, allocate what it lacks on the device, and return what is to be moved, last block
        first.
        """
        device, kept = self._device, tuple(present)
        for group, block in kept:  # before anything is allocated: allocating evicts
            device.pools[group].share(block)
        load.lent = [(piece.group, piece.place) for piece in pieces if piece.place is not None]
        for group, place in load.lent:
            device.host.lend(group, place)
        moves: dict[BlockKey, list[Fetch]] = {}
        for piece in pieces:
            if piece.block is not None:
                self._hold(load, piece.number, piece.group, piece.block)
                continue
            block = device.pools[piece.group].allocate()
            self._note_held(load, piece.number, piece.group, block)
            moves.setdefault(piece.node.key, []).append(_move(piece, block))
        for group, block in reversed(kept):
            device.pools[group].release(block)
        parts = {piece.node.key: piece for piece in pieces}
        return tuple(self._unit(parts[key], moves[key]) for key in reversed(moves))

    def _land(self, load: InFlightLoad, unit: LoadUnit, arrived: Sequence[bool]) -> None:
        """Name the blocks of a unit whose bytes are there. If somebody has computed one meanwhile, that one
        stays, and the load holds it in place of its own.

        Args:
            arrived: one entry for each of the unit's moves.
        """
        self._flying.pop(unit.node.key, None)
        self._device.num_transfer_changes += 1
        for move, is_there in zip(unit.moves, arrived, strict=True):
            known = self._device.index.block(unit.node.key, move.group)
            if known is not None:
                self._hold(load, unit.number, move.group, known)
                load.held[unit.number].remove((move.group, move.target))
                self._release(move.group, move.target)
            elif is_there:
                path = (*load.match.parents[:1], *load.match.keys[: unit.number])
                self._device.name(move.group, move.target, unit.node, path)
                self._device.brought[move.group, unit.node.key] = unit.tier
            else:
                failed = load.first_failed
                load.first_failed = unit.number if failed is None else min(failed, unit.number)

    def _note(self, unit: LoadUnit, reason: str) -> None:
        for number, move in enumerate(unit.moves):
            num_tokens = 0 if number else len(unit.node.token_ids)
            self._device.events.note(
                CacheEventKind.LOAD, reason, move.group, unit.node.key, tier=unit.tier, num_tokens=num_tokens
            )

    def _end(self, load: InFlightLoad) -> None:
        load.has_ended = True
        self._let_go(load)
        del self._loads[load.job]
        for unit in load.job.units:
            if self._flying.get(unit.node.key) is load:
                del self._flying[unit.node.key]

    def _let_go(self, load: InFlightLoad) -> None:
        """Let go of everything, last block first: what has arrived stays cached, the rest is free. So is what
        arrived behind a block that could not be had, since nobody finds it.
        """
        self._device.num_transfer_changes += 1
        for number in sorted(load.held, reverse=True):
            for group, block in load.held[number]:
                self._release(group, block)
        load.held.clear()
        self._forget_orphans(load)
        for group, place in load.lent:
            self._device.host.take_back(group, place)
        load.lent.clear()

    def _forget_orphans(self, load: InFlightLoad) -> None:
        if load.first_failed is None:
            return
        match, device = load.match, self._device
        tail = (match.partial.key,) if match.partial and match.partial.key is not None else ()
        names = (*match.keys, *tail)[load.first_failed :]
        if not names:
            return
        failed, *behind = names
        for group in device.groups:
            if group.spec.stands_alone or device.index.block(failed, group.id) is not None:
                continue
            pool = device.pools[group.id]
            for key in reversed(behind):
                block = device.index.block(key, group.id)
                if block is not None and pool.is_cached(block) and pool.is_leaf(block):
                    device.forget(group.id, block)

    def _pieces(self, match: PrefixMatch, root: BlockKey) -> Iterator[_Piece]:
        """Yield what each group needs of a match, block after block."""
        device = self._device
        blocks = list(zip(match.keys, match.block_ids, strict=True))
        num_full, size = len(blocks), device.block_size
        numbers = {group.id: set(match.numbers(group, size)) for group in device.groups}
        if match.partial and match.partial.key is not None:
            blocks.append((match.partial.key, match.partial.token_ids))
        if match.state is not None:
            for group in device.groups:
                if group.is_state:
                    yield self._piece(group.id, match.state.start // size, match.state)
        for number, (key, token_ids) in enumerate(blocks):
            own = IndexNode(key, match.parents[number], token_ids, number * size)
            for group in device.groups:
                if group.is_state or (number < num_full and number not in numbers[group.id]):
                    continue
                if number >= group.num_blocks(match.length, size):
                    continue
                kept = kept_name(group, number, match.kept_names) if number < num_full else None
                node = IndexNode(*kept, token_ids, number * size) if kept else own
                yield self._piece(group.id, number, node)

    def _piece(self, group: GroupId, number: int, node: IndexNode) -> _Piece:
        block = self._device.index.block(node.key, group)
        place = self._device.host.find(node.key, group) if block is None else None
        return _Piece(number, node, group, block, place)

    def _resident(self, key: BlockKey) -> Iterator[Held]:
        for group in self._device.groups:
            block = self._device.index.block(key, group.id)
            if block is not None:
                yield group.id, block

    def _lacking(self, pieces: Sequence[_Piece], present: Iterable[Held]) -> GroupId | None:
        """Return a group that has too few blocks to be had."""
        for group, pool in self._device.pools.items():
            num_lacking = sum(piece.block is None for piece in pieces if piece.group == group)
            num_kept = sum(held == group and pool.is_cached(block) for held, block in present)
            if num_lacking > pool.num_available - num_kept:
                return group
        return None

    def _unit(self, piece: _Piece, moves: Sequence[Fetch]) -> LoadUnit:
        return LoadUnit(
            number=piece.number,
            node=piece.node,
            moves=tuple(moves),
            num_bytes=sum(self._device.block_bytes[move.group] for move in moves),
            tier=Tier.DISK if any(isinstance(move, Load) for move in moves) else Tier.HOST,
        )

    def _hold(self, load: InFlightLoad, number: int, group: GroupId, block: BlockId) -> None:
        self._device.pools[group].share(block)
        self._note_held(load, number, group, block)

    def _note_held(self, load: InFlightLoad, number: int, group: GroupId, block: BlockId) -> None:
        self._device.held[group, block] += 1
        load.held.setdefault(number, []).append((group, block))

    def _release(self, group: GroupId, block: BlockId) -> None:
        held = self._device.held
        held[group, block] -= 1
        if not held[group, block]:
            del held[group, block]
        self._device.pools[group].release(block)


def _present(pieces: Iterable[_Piece]) -> dict[Held, None]:
    """Return the blocks that are on the device, in order."""
    return {(piece.group, piece.block): None for piece in pieces if piece.block is not None}


def _move(piece: _Piece, target: BlockId) -> Fetch:
    node = piece.node
    if piece.place is not None:
        return Promote(piece.group, piece.place, target)
    return Load(piece.group, node.key, node.parent, node.token_ids, target)
