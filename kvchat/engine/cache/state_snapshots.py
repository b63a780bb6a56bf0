"""State snapshots: which states of a sequence are kept under a name, and the blocks that hold them.

A sequence holds one state, behind its computed tokens; while a step runs it holds the block for the next
one too. A state is never written twice: a fork shares it, a snapshot is the same block with a name, and a
step that ends early leaves what was there. The name is that of the block or tail which ends where the state
was taken, so it is found with the keys and values of the same tokens.
"""

from kvchat.engine.api.ids import block_key
from kvchat.engine.cache.block_operations import Save
from kvchat.engine.cache.block_table_changes import TableLog
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.prefix_index import IndexNode
from kvchat.engine.formats.recurrent.spec import piece_of
from kvchat.engine.sequences.sequence import Sequence


class StateSnapshots:
    """The states of all sequences; does nothing for models without any."""

    def __init__(self, device: DeviceTier, log: TableLog) -> None:
        self._device = device
        self._log = log
        self._groups = [group for group in device.groups if group.is_state]
        self._piece = piece_of(self._groups)
        self._saves: list[Save] = []

    def take_saves(self) -> tuple[Save, ...]:
        """Return the states of prompts that were kept since the last call."""
        saves, self._saves = tuple(self._saves), []
        return saves

    def plan(self, sequence: Sequence) -> None:
        """Decide where steps through a sequence's tokens end, and which states are kept of its prompt: the
        last one from which it can be answered again, the one where it leaves a text that others share, and
        those at its checkpoints.
        """
        if not self._piece:
            return
        sequence.piece = self._piece
        most = len(sequence.token_ids) - max(1, sequence.view_schedule.num_observed)
        wanted = (*sequence.checkpoints, sequence.known_len, most)
        ends = sorted({min(end, most) // self._piece * self._piece for end in wanted})
        sequence.snapshots_at = tuple(end for end in ends if end > sequence.computed_len)

    def advance(self, sequence: Sequence) -> None:
        """Let go of the state before the tokens that have just been computed; keep the new one if it is to be
        a snapshot.
        """
        for group in self._groups:
            table = sequence.tables[group.id]
            if len(table) > 1:
                before = table.pop(0)
                assert before is not None
                self._device.references.release(sequence, group.id, before)
                self._log.note_from(sequence, group.id, 0)
        if self._groups and sequence.computed_len in sequence.snapshots_at:
            self.keep(sequence)
            if sequence.is_saved:
                self._saves += self.saves(sequence)

    def keep(self, sequence: Sequence) -> None:
        """Name the state behind a sequence's computed tokens, unless one with that name is kept."""
        node = self.node(sequence)
        if node is None:
            return
        for group in self._groups:
            block = sequence.tables[group.id][0]
            assert block is not None
            is_named = self._device.pools[group.id].key(block) is not None
            if not is_named and self._device.index.block(node.key, group.id) is None:
                number = node.start // self._device.block_size
                self._device.name(group.id, block, node, (sequence.root, *sequence.keys[:number]))

    def node(self, sequence: Sequence) -> IndexNode | None:
        """Return the block or tail behind which a sequence's state stands; None: there is none. Pure."""
        if not self._groups or not sequence.computed_len:
            return None
        size = self._device.block_size
        number = (sequence.computed_len - 1) // size
        ids = sequence.block_ids(number, size)
        if len(ids) == size:
            return IndexNode(sequence.keys[number], sequence.parent_of(number), ids, number * size)
        return IndexNode(block_key(sequence.last_key, ids), sequence.last_key, ids, number * size)

    def saves(self, sequence: Sequence) -> tuple[Save, ...]:
        """Return what must be written so that a sequence's state is stored. Pure."""
        node = self.node(sequence)
        if node is None or node.key == sequence.saved_tail:
            return ()
        return tuple(
            Save(group.id, node.key, node.parent, node.token_ids, block)
            for group in self._groups
            if (block := sequence.tables[group.id][0]) is not None
        )
