"""State snapshots: which states of a sequence are kept under a name, and the blocks that hold them.

A sequence holds one state, behind its computed tokens; while a step runs it holds the block for the next
one too. A state is never written twice: a fork shares it, a snapshot is the same block with a name, and a
step that ends early leaves what was there. The name is that of the block or tail which ends where the state
was taken, so it is found with the keys and values of the same tokens.
"""

from collections.abc import Callable

from kvchat.engine.api.ids import GroupId, block_key
from kvchat.engine.cache.block_operations import Save, TableLog
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.prefix_index import IndexNode
from kvchat.engine.formats.recurrent.spec import computes_whole_steps, piece_of
from kvchat.engine.sequences.sequence import Sequence


class StateSnapshots:
    """The states of all sequences; does nothing for models without any."""

    def __init__(self, device: DeviceTier, log: TableLog) -> None:
        self._device = device
        self._log = log
        self._groups = [group for group in device.groups if group.is_state]
        self._piece = piece_of(self._groups)
        self._ends_at_snapshots = computes_whole_steps(self._groups)
        self._saves: list[Save] = []

    def take_saves(self) -> tuple[Save, ...]:
        """Return the states of prompts that were kept since the last call."""
        saves, self._saves = tuple(self._saves), []
        return saves

    def save_found(self, state: IndexNode, is_stored: Callable[[GroupId], bool]) -> None:
        """Note a state that a sequence begins with for the store, unless that has it: whoever computed it may
        not have been saved.
        """
        self._saves += [
            Save(group.id, state.key, state.parent, state.token_ids, block)
            for group in self._groups
            if (block := self._device.index.block(state.key, group.id)) is not None
            and not is_stored(group.id)
        ]

    def plan(self, sequence: Sequence) -> None:
        """Decide where steps through a sequence's tokens end, and which states are kept of its prompt: the
        last one from which it can be answered again, the one where it leaves a text that others share, and
        those at its checkpoints.
        """
        if not self._piece:
            return
        sequence.piece, sequence.ends_at_snapshots = self._piece, self._ends_at_snapshots
        most = len(sequence.token_ids) - max(1, sequence.view_schedule.num_observed)
        wanted = (*sequence.checkpoints, sequence.known_len, most)
        ends = sorted({min(end, most) // self._piece * self._piece for end in wanted})
        sequence.snapshots_at = tuple(end for end in ends if end > sequence.computed_len)

    def advance(self, sequence: Sequence, num_tokens: int) -> None:
        """Let go of the states before the last of the `num_tokens` tokens that have just been computed; keep
        those that are to be snapshots.
        """
        if not self._groups:
            return
        start, end = sequence.computed_len - num_tokens, sequence.computed_len
        kept = [at for at in sequence.snapshots_at if start < at <= end]
        for entry, at in enumerate(kept, start=bool(start)):
            self.keep(sequence, at, entry)
            if sequence.is_saved:
                self._saves += self.saves(sequence, at, entry)
        for group in self._groups:
            table = sequence.tables[group.id]
            while len(table) > 1:
                before = table.pop(0)
                assert before is not None
                self._device.references.release(sequence, group.id, before)
            self._log.note_from(sequence, group.id, 0)

    def keep(self, sequence: Sequence, num_tokens: int | None = None, entry: int = 0) -> None:
        """Name a state of a sequence, unless one with that name is kept.

        Args:
            num_tokens: that it stands behind, computed ones; None: all of them.
            entry: where it is in the tables.
        """
        node = self.node(sequence, num_tokens)
        if node is None:
            return
        for group in self._groups:
            block = sequence.tables[group.id][entry]
            assert block is not None
            is_named = self._device.pools[group.id].key(block) is not None
            if not is_named and self._device.index.block(node.key, group.id) is None:
                number = node.start // self._device.block_size
                self._device.name(group.id, block, node, (sequence.root, *sequence.keys[:number]))

    def node(self, sequence: Sequence, num_tokens: int | None = None) -> IndexNode | None:
        """Return the block or tail behind which a sequence's state stands; None: there is none. Pure."""
        length = sequence.computed_len if num_tokens is None else num_tokens
        if not self._groups or not length:
            return None
        size = self._device.block_size
        number = (length - 1) // size
        start, parent = number * size, sequence.parent_of(number)
        ids = tuple(sequence.token_ids[start:length])
        is_full = len(ids) == size
        key = sequence.keys[number] if is_full else block_key(parent, ids)
        return IndexNode(key, parent, ids, start)

    def saves(self, sequence: Sequence, num_tokens: int | None = None, entry: int = 0) -> tuple[Save, ...]:
        """Return what must be written so that a state of a sequence is stored; see `keep`. Pure."""
        node = self.node(sequence, num_tokens)
        if node is None or node.key == sequence.saved_tail:
            return ()
        return tuple(
            Save(group.id, node.key, node.parent, node.token_ids, block)
            for group in self._groups
            if (block := sequence.tables[group.id][entry]) is not None
        )
