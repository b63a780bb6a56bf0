"""Taking what a match found into a branch's tables.

Everything that is matched is held before anything is allocated, on the device and in host memory: what is
allocated evicts, and what is evicted takes places in host memory.
"""

from collections.abc import Iterable

from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.cache.branch import Branch
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.match import PartialBlock, PrefixMatch
from kvchat.engine.cache.plan import Copy, Load, Move, Promote
from kvchat.engine.cache.spec import Group

Resident = dict[GroupId, list[BlockId | None]]
"""The device blocks of the matched blocks that each group needs, None where it must load."""


class Admission:
    """Fills the tables of empty branches."""

    def __init__(self, device: DeviceTier) -> None:
        self._device = device

    def take(self, branch: Branch, match: PrefixMatch, num_following: int) -> tuple[Move, ...] | None:
        """Hold the matched blocks in an empty branch's tables and allocate those that are to be filled.

        Args:
            num_following: tokens behind the matched ones for which there must be room too.

        Returns:
            The copies and loads that fill them, or None if there is no room; then nothing has changed.
        """
        if self.lacking(match, num_following) is not None:
            return None
        resident = {group.id: self._resident(group, match) for group in self._device.groups}
        self._hold(resident, match)
        return tuple(
            move
            for group in self._device.groups
            for move in self._fill(branch, group, resident[group.id], match)
        )

    def lacking(self, match: PrefixMatch, num_following: int) -> GroupId | None:
        """Return a group with too few blocks for `take`; None if there is room. Pure."""
        for group in self._device.groups:
            if not self._has_room(group, self._resident(group, match), match, num_following):
                return group.id
        return None

    def _resident(self, group: Group, match: PrefixMatch) -> list[BlockId | None]:
        first = group.spec.first_visible(match.length) // self._device.block_size
        return [self._device.index.block(key, group.id) for key in match.keys[first:]]

    def _has_room(
        self, group: Group, resident: list[BlockId | None], match: PrefixMatch, num_following: int
    ) -> bool:
        """Whether the blocks that `group` lacks can be allocated without evicting those that are matched."""
        pool, size = self._device.pools[group.id], self._device.block_size
        found = [block for block in resident if block is not None]
        num_missing = len(resident) - len(found)
        num_missing += -(-(match.length + num_following) // size) - -(-match.length // size)
        if match.partial:
            num_missing += 1
            found += [match.partial.blocks[group.id]] if group.id in match.partial.blocks else []
        return num_missing <= pool.num_available - sum(pool.is_cached(block) for block in found)

    def _hold(self, resident: Resident, match: PrefixMatch) -> None:
        for group, blocks in resident.items():
            for key, block in zip(match.keys[len(match.keys) - len(blocks) :], blocks, strict=True):
                if block is not None:
                    self._device.pools[group].share(block)
                else:
                    self._device.host.hold(key, group)
        if match.partial:
            for group in resident:
                self._hold_source(group, match.partial)

    def _hold_source(self, group: GroupId, partial: PartialBlock) -> None:
        block = partial.blocks.get(group)
        if block is not None:
            self._device.pools[group].share(block)
            self._device.keep_source(group, block)
        elif partial.key is not None:
            self._device.host.hold(partial.key, group)

    def _fill(
        self, branch: Branch, group: Group, resident: list[BlockId | None], match: PrefixMatch
    ) -> Iterable[Move]:
        pool, table = self._device.pools[group.id], branch.tables[group.id]
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
        place = self._device.host.find(load.key, load.group)
        return load if place is None else Promote(load.group, place, load.target)
