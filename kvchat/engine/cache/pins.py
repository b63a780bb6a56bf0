"""Pins: blocks that are never evicted until they are unpinned, since a pin is one of their holders.

A pin covers the full blocks of a sequence at that moment: what is needed to go on behind the last of them, of
recurrent states the last one that is kept before their end. It outlives the sequence. What the sequence
computes later is covered by pinning it again. A pin is kept until it is undone; one that would leave too
little for everybody else is refused.
"""

from collections import Counter, abc
from collections.abc import Iterable, Mapping

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId, SequenceId
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.formats.spec import Group
from kvchat.engine.sequences.sequence import Sequence
from kvchat.errors import PinRefused

MOST_PINNED = 2
"""At most one in so many blocks of a group may be pinned."""

Needs = Mapping[GroupId, int]
"""How many blocks of each group a request needs."""


class Pins:
    """Which sequence has had which blocks pinned. A pin is named by the sequence's id."""

    def __init__(self, device: DeviceTier) -> None:
        self._device = device
        self._blocks: dict[SequenceId, tuple[tuple[GroupId, BlockId], ...]] = {}
        self.held: Counter[tuple[GroupId, BlockId]] = Counter()
        """Pinned blocks, and how many pins hold each."""
        self._num_pinned: Counter[GroupId] = Counter()

    def pin(self, sequence: Sequence, requests: abc.Sequence[tuple[Sequence, Needs]] = ()) -> int:
        """Pin what a sequence holds, instead of what it held when it was pinned before.

        Args:
            requests: sequences that run or wait, each with what it needs in the end.

        Returns:
            The number of blocks that this pin keeps, all groups together.

        Raises:
            PinRefused: too little would be left; everything stays as it was.
        """
        wanted = tuple(
            (group.id, block) for group in self._device.groups for block in self._full_blocks(sequence, group)
        )
        for group in self._device.groups:
            self._check_room(sequence.id, group.id, wanted, requests)
        for group_id, block in wanted:
            self._device.pools[group_id].share(block)
        self.unpin(sequence.id)
        self._blocks[sequence.id] = wanted
        self.held.update(wanted)
        self._count()
        return len(wanted)

    def unpin(self, sequence: SequenceId) -> None:
        """Undo a pin; nothing happens if there is none under this name."""
        blocks = self._blocks.pop(sequence, ())
        self.held -= Counter(blocks)
        self._count()
        for group, block in reversed(blocks):
            self._device.pools[group].release(block)

    def clear(self) -> None:
        """Undo all pins."""
        for name in tuple(self._blocks):
            self.unpin(name)

    def num_others(self, group: GroupId, keys: abc.Sequence[BlockKey]) -> int:
        """Return how many pinned blocks of a group are not among `keys`. Pure."""
        own = {self._device.index.block(key, group) for key in keys}
        return len(_of_group(self.held, group) - own)

    def num_pinned(self, group: GroupId) -> int:
        """Return how many blocks of a group are pinned. O(1), since every snapshot asks. Pure."""
        return self._num_pinned[group]

    def _count(self) -> None:
        self._num_pinned = Counter(group for group, _ in self.held)

    def _full_blocks(self, sequence: Sequence, group: Group) -> tuple[BlockId, ...]:
        """Return what going on behind the sequence's last full block needs, as far as it is on the device:
        with a window that may begin before what the sequence holds itself, since its tail is further on.
        """
        if group.is_state:
            return self._last_state(sequence, group)
        size = self._device.block_size
        numbers = sequence.view_schedule.numbers(group, len(sequence.keys) * size, size)
        return tuple(
            block
            for number in numbers
            if (block := self._device.index.block(sequence.name_of(group, number)[0], group.id)) is not None
        )

    def _last_state(self, sequence: Sequence, group: Group) -> tuple[BlockId, ...]:
        num_tokens = len(sequence.keys) * self._device.block_size
        path = (sequence.root, *sequence.keys)
        for block in self._device.snapshots[group.id].on_path(path, num_tokens):
            key = self._device.pools[group.id].key(block)
            assert key is not None, "a snapshot has a name"
            node = self._device.index.node(key)
            ids = sequence.token_ids[node.start : node.start + len(node.token_ids)]
            if tuple(ids) == node.token_ids:
                return (block,)
        return ()

    def _check_room(
        self,
        name: SequenceId,
        group: GroupId,
        wanted: abc.Sequence[tuple[GroupId, BlockId]],
        requests: abc.Sequence[tuple[Sequence, Needs]],
    ) -> None:
        num_blocks = self._device.pools[group].num_blocks
        others = self.held - Counter(self._blocks.get(name, ()))
        pinned = _of_group([*others, *wanted], group)
        most = num_blocks // MOST_PINNED
        reason = f"at most {most} of {num_blocks} may be"
        for sequence, needs in requests:
            num_others = len(pinned.difference(sequence.tables[group]))
            if num_others + needs[group] > num_blocks:
                most = min(most, len(pinned) - (num_others + needs[group] - num_blocks))
                reason = (
                    f"a request at work needs {needs[group]} of {num_blocks}, which leaves {max(most, 0)}"
                )
        if len(pinned) > most:
            raise PinRefused(
                f"{len(_of_group(wanted, group))} blocks cannot be pinned: {len(pinned)} would be in all, "
                f"and {reason}; unpin something else, or give the cache more with --kv-device-bytes"
            )


def _of_group(blocks: Iterable[tuple[GroupId, BlockId]], group: GroupId) -> set[BlockId]:
    return {block for owner, block in blocks if owner == group}
