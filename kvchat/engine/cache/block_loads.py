"""Blocks on their way to the device: everything of a match that is not there yet, held until it is used.

A transfer holds each block of its match: those that are on the device already, those that are to be written,
and the places in host memory they are read from. So nothing of it can be evicted or handed out while bytes
move, whatever becomes of the request that wanted it. A block gets its name when its bytes have arrived and
are verified; from then on it is found like any other.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_operations import Fetch, Load, Promote
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.prefix_index import IndexNode
from kvchat.engine.cache.prefix_matcher import PrefixMatch
from kvchat.engine.formats.view_schedule import kept_name


@dataclass(frozen=True, slots=True)
class LoadUnit:
    """What one block lacks on the device.

    Args:
        number: the block's place in the prompt.
        node: its name and ids.
        tier: the slowest tier that one of its groups comes from.
    """

    number: int
    node: IndexNode
    moves: tuple[Fetch, ...]
    num_bytes: int
    tier: Tier


Held = tuple[GroupId, BlockId]


@dataclass(slots=True, eq=False)
class Transfer:
    """The blocks of one match, held until `Transfers.end`.

    Args:
        match: what was matched when it began.
        units: what is to be moved, last block first.
    """

    match: PrefixMatch
    units: tuple[LoadUnit, ...] = ()
    held: dict[int, list[Held]] = field(default_factory=dict)
    """Device blocks by the number of the block in the prompt."""
    lent: list[Held] = field(default_factory=list)
    """Places in host memory."""
    first_failed: int | None = None
    """Number of the first block that could not be had."""

    _bytes_left: list[dict[Tier, int]] = field(default_factory=list)

    def take(self, units: tuple[LoadUnit, ...]) -> None:
        """Set what is to be moved."""
        self.units = units
        left = [{Tier.HOST: 0, Tier.DISK: 0}]
        for unit in reversed(units):
            left.append(left[-1] | {unit.tier: left[-1][unit.tier] + unit.num_bytes})
        self._bytes_left = left[::-1]

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


class Transfers:
    """Begins and ends transfers to one device tier. Integers only."""

    def __init__(self, device: DeviceTier) -> None:
        self._device = device
        self._flying: dict[BlockKey, Transfer] = {}

    def in_the_way(self, match: PrefixMatch) -> Transfer | None:
        """Return a transfer that is bringing a block of the match and has not brought it yet. Pure."""
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

    def begin(self, match: PrefixMatch, root: BlockKey, spared: Sequence[BlockKey] = ()) -> Transfer | None:
        """Hold a match and allocate what it lacks on the device; None if there is no room.

        Evicts blocks that nobody holds. The demotions this plans are due before the first move is carried
        out: `DeviceTier.take_demotions`.

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
        for group, block in present:  # before anything is allocated: allocating evicts
            device.pools[group].share(block)
        transfer = Transfer(match)
        transfer.lent = [(piece.group, piece.place) for piece in pieces if piece.place is not None]
        for group, place in transfer.lent:
            device.host.lend(group, place)
        moves: dict[BlockKey, list[Fetch]] = {}
        for piece in pieces:
            if piece.block is not None:
                self._hold(transfer, piece.number, piece.group, piece.block)
                continue
            block = device.pools[piece.group].allocate()
            self._note_held(transfer, piece.number, piece.group, block)
            moves.setdefault(piece.node.key, []).append(_move(piece, block))
        for group, block in reversed(present):
            device.pools[group].release(block)
        parts = {piece.node.key: piece for piece in pieces}
        transfer.take(tuple(self._unit(parts[key], moves[key]) for key in reversed(moves)))
        self._flying |= {unit.node.key: transfer for unit in transfer.units}
        return transfer

    def land(self, transfer: Transfer, unit: LoadUnit, arrived: Sequence[bool]) -> None:
        """Name the blocks of a unit whose bytes are there. If somebody has computed one meanwhile, that one
        stays, and the transfer holds it in place of its own.

        Args:
            arrived: one entry for each of the unit's moves.
        """
        self._flying.pop(unit.node.key, None)
        self._device.num_transfer_changes += 1
        for move, is_there in zip(unit.moves, arrived, strict=True):
            known = self._device.index.block(unit.node.key, move.group)
            if known is not None:
                self._hold(transfer, unit.number, move.group, known)
                transfer.held[unit.number].remove((move.group, move.target))
                self._release(move.group, move.target)
            elif is_there:
                path = (*transfer.match.parents[:1], *transfer.match.keys[: unit.number])
                self._device.name(move.group, move.target, unit.node, path)
                self._device.brought[unit.node.key] = unit.tier
            else:
                failed = transfer.first_failed
                transfer.first_failed = unit.number if failed is None else min(failed, unit.number)

    def give_up(self, transfer: Transfer, number: int) -> None:
        """Let go of a block that is computed instead; it must not be on its way."""
        self._device.num_transfer_changes += 1
        for group, block in transfer.held.pop(number, ()):
            self._release(group, block)

    def end(self, transfer: Transfer) -> None:
        """Let go of everything, last block first: what has arrived stays cached, the rest is free. So is what
        arrived behind a block that could not be had, since nobody finds it.
        """
        self._device.num_transfer_changes += 1
        for number in sorted(transfer.held, reverse=True):
            for group, block in transfer.held[number]:
                self._release(group, block)
        transfer.held.clear()
        self._forget_orphans(transfer)
        for group, place in transfer.lent:
            self._device.host.take_back(group, place)
        transfer.lent.clear()
        for unit in transfer.units:
            if self._flying.get(unit.node.key) is transfer:
                del self._flying[unit.node.key]

    def _forget_orphans(self, transfer: Transfer) -> None:
        if transfer.first_failed is None:
            return
        match, device = transfer.match, self._device
        tail = (match.partial.key,) if match.partial and match.partial.key is not None else ()
        names = (*match.keys, *tail)[transfer.first_failed :]
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

    def check_integrity(self, transfers: Iterable[Transfer]) -> None:
        """Assert that these hold what is held, and that only their blocks are on their way."""
        transfers = tuple(transfers)
        blocks = (held for transfer in transfers for held in chain.from_iterable(transfer.held.values()))
        assert Counter(blocks) == self._device.held
        assert set(self._flying.values()) <= set(transfers)

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

    def _hold(self, transfer: Transfer, number: int, group: GroupId, block: BlockId) -> None:
        self._device.pools[group].share(block)
        self._note_held(transfer, number, group, block)

    def _note_held(self, transfer: Transfer, number: int, group: GroupId, block: BlockId) -> None:
        self._device.held[group, block] += 1
        transfer.held.setdefault(number, []).append((group, block))

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
