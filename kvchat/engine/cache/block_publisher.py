"""Block publisher: names blocks by content and tells the store what to write."""

from kvchat.engine.api.cache_events import CacheEventKind
from kvchat.engine.api.ids import BlockKey, block_key
from kvchat.engine.cache.block_operations import Save, TableLog
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.prefix_index import IndexNode
from kvchat.engine.formats.spec import Group, Lifetime
from kvchat.engine.sequences.sequence import Sequence


class BlockPublisher:
    """Names the blocks that sequences have written; a name is given once."""

    def __init__(self, device: DeviceTier, log: TableLog) -> None:
        self._device = device
        self._log = log
        self._saves: list[Save] = []

    def publish(self, sequence: Sequence, group: Group, number: int) -> None:
        """Name a full block and note it for the store, or give it up for the one that has its name."""
        table = sequence.tables[group.id]
        key, parent = sequence.name_of(group, number)
        block = table[number]
        if block is None:
            return
        known = self._device.index.block(key, group.id)
        if known is not None:
            self._device.references.share(sequence, group.id, known)
            self._device.references.release(sequence, group.id, block)
            table[number] = known
            self._log.note_one(sequence, group.id, number, known)
            self._note(CacheEventKind.SHARE, "the same block is cached already", sequence, group, key)
            return
        start = number * self._device.block_size
        node = IndexNode(key, parent, self._ids(sequence, number), start)
        self._device.name(group.id, block, node)
        self._note(CacheEventKind.SEAL, "it is full", sequence, group, key)
        if sequence.is_saved and group.spec.lifetime is not Lifetime.SUPERSEDED:
            # Superseded blocks are stored at turns' ends alone: the tail there is the only way back to it.
            is_kept = self._device.has_superseded or sequence.saved_tail == node.parent
            replaced = None if is_kept else sequence.saved_tail
            self._saves.append(Save(group.id, key, node.parent, node.token_ids, block, replaced))

    def name_tail(self, sequence: Sequence) -> None:
        """Name the tail of a sequence that is letting go, where no other sequence goes on writing it."""
        node = self._tail(sequence)
        if node is None:
            return
        for group in self._device.groups_with_tail:
            block = sequence.tables[group.id][node.start // self._device.block_size]
            if block is None or self._device.pools[group.id].count(block) > 1:
                continue
            if self._device.index.block(node.key, group.id) is None:
                self._device.name(group.id, block, node)
                self._note(CacheEventKind.SEAL, "its branch let go of this tail", sequence, group, node.key)

    def take_saves(self) -> tuple[Save, ...]:
        """Return the blocks that were named since the last call, in order."""
        saves = tuple(self._saves)
        self._saves.clear()
        return saves

    def tail_saves(self, sequence: Sequence) -> tuple[Save, ...]:
        """Return what must be written so that the sequence's tail is stored; nothing if it is. Pure."""
        node = self._tail(sequence)
        if node is None or node.key == sequence.saved_tail:
            return ()
        number = node.start // self._device.block_size
        # Where a state alone was saved behind a full block, that is no tail.
        replaced = None if sequence.saved_tail == node.parent else sequence.saved_tail
        return tuple(
            Save(group.id, node.key, node.parent, node.token_ids, block, replaced)
            for group in self._device.groups_with_tail
            if (block := sequence.tables[group.id][number]) is not None
        )

    def block_saves(self, sequence: Sequence) -> tuple[Save, ...]:
        """Return every full block that the sequence holds, for a store that may lack some of them. Pure."""
        return tuple(
            Save(group.id, *sequence.name_of(group, number), self._ids(sequence, number), block)
            for group in self._device.groups
            if not group.is_state
            for number, (_, block) in enumerate(zip(sequence.keys, sequence.tables[group.id], strict=False))
            if block is not None
        )

    def _note(
        self, kind: CacheEventKind, reason: str, sequence: Sequence, group: Group, key: BlockKey
    ) -> None:
        self._device.events.note(kind, reason, group.id, key, owner=sequence.owner)

    def _tail(self, sequence: Sequence) -> IndexNode | None:
        """Return the block that a sequence's last computed tokens only begin; None if they fill it."""
        number, num_tokens = divmod(sequence.computed_len, self._device.block_size)
        if not num_tokens:
            return None
        ids, parent = self._ids(sequence, number), sequence.last_key
        return IndexNode(block_key(parent, ids), parent, ids, number * self._device.block_size)

    def _ids(self, sequence: Sequence, number: int) -> tuple[int, ...]:
        return sequence.block_ids(number, self._device.block_size)
