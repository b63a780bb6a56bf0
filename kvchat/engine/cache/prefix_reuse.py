"""Admission: takes the device blocks of a prefix match into a sequence's block tables.

Everything that is matched is held before anything is allocated: what is allocated evicts.
"""

from kvchat.engine.api.cache_events import CacheEventKind
from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.cache.block_operations import Copy
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.prefix_matcher import PartialBlock, PrefixMatch
from kvchat.engine.formats.spec import Group
from kvchat.engine.sequences.sequence import Sequence


class Admission:
    """Fills the tables of empty sequences. A match must lie on the device as a whole: what is stored
    elsewhere is brought there by a transfer before.
    """

    def __init__(self, device: DeviceTier) -> None:
        self._device = device

    def take(self, sequence: Sequence, match: PrefixMatch, num_following: int) -> tuple[Copy, ...] | None:
        """Hold the matched blocks in an empty sequence's tables, and allocate the one that is to be a copy.

        Args:
            num_following: tokens behind the matched ones for which there must be room too.

        Returns:
            The copies that fill what was allocated, or None if there is no room; then nothing has changed.
        """
        if self.lacking(match, num_following) is not None:
            return None
        kind, num_tokens = CacheEventKind.HIT, match.length
        reason = "its beginning is cached"
        if not num_tokens:
            kind, num_tokens = CacheEventKind.MISS, len(sequence.token_ids)
            reason = "nothing of it is cached"
        self._device.events.note(
            kind,
            reason,
            key=match.keys[-1] if match.keys else None,
            owner=sequence.owner,
            num_blocks=len(match.keys),
            num_tokens=num_tokens,
        )
        for group in self._device.groups:
            self._hold(sequence, group, match)
        if match.partial is None:
            return ()
        return tuple(self._copy(sequence, group, match.partial) for group in self._device.groups_with_tail)

    def lacking(self, match: PrefixMatch, num_following: int) -> GroupId | None:
        """Return a group with too few blocks for `take`; None if there is room. Pure."""
        groups = self._device.groups
        return next((group.id for group in groups if not self._has_room(group, match, num_following)), None)

    def _has_room(self, group: Group, match: PrefixMatch, num_following: int) -> bool:
        """Whether what `group` needs can be allocated without evicting a block that is matched."""
        pool, size = self._device.pools[group.id], self._device.block_size
        found = self._found(group, match)
        if group.is_state:
            return sum(map(pool.is_cached, found)) < pool.num_available
        num_missing = group.num_blocks(match.length + num_following, size)
        num_missing -= group.num_blocks(match.length, size)
        if match.partial and group.source is None:
            num_missing += 1
            found.append(match.partial.blocks[group.id])
        return num_missing <= pool.num_available - sum(pool.is_cached(block) for block in found)

    def _found(self, group: Group, match: PrefixMatch) -> list[BlockId]:
        """Return the device blocks that the group needs behind the matched tokens."""
        if group.is_state:
            if match.state is None:
                return []
            block = self._device.index.block(match.state.key, group.id)
            assert block is not None, "a match is admitted whose state is not on the device"
            return [block]
        found = []
        for number in match.numbers(group, self._device.block_size):
            block = self._device.index.block(match.key_of(group, number), group.id)
            assert block is not None, "a match is admitted that is not on the device"
            found.append(block)
        return found

    def _hold(self, sequence: Sequence, group: Group, match: PrefixMatch) -> None:
        table, size = sequence.tables[group.id], self._device.block_size
        if group.is_state:
            for block in self._found(group, match):
                self._device.references.share(sequence, group.id, block)
                table.append(block)
            return
        table += [None] * min(len(match.keys), group.num_blocks(match.length, size))
        for number, block in zip(match.numbers(group, size), self._found(group, match), strict=True):
            self._device.references.share(sequence, group.id, block)
            table[number] = block
        if match.partial and group.source is None:
            source = match.partial.blocks[group.id]
            self._device.pools[group.id].share(source)
            self._device.keep_source(group.id, source)

    def _copy(self, sequence: Sequence, group: Group, partial: PartialBlock) -> Copy:
        target = self._device.references.allocate(sequence, group.id)
        sequence.tables[group.id].append(target)
        self._device.events.note(
            CacheEventKind.COPY,
            "a cached block begins the same",
            group.id,
            partial.key,
            owner=sequence.owner,
            num_tokens=partial.num_tokens,
        )
        return Copy(group.id, partial.blocks[group.id], target, partial.num_tokens)
