"""Tails of live sequences by parent block: copy sources that have no name yet."""

from collections.abc import Mapping

from kvchat.engine.api.ids import BlockKey, SequenceId
from kvchat.engine.sequences.sequence import Sequence


class LiveTails:
    """Live sequences by the key of their last full block."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._sequences: dict[BlockKey, dict[SequenceId, Sequence]] = {}

    def watch(self, sequence: Sequence, parent: BlockKey) -> None:
        self._sequences.setdefault(parent, {})[sequence.id] = sequence

    def unwatch(self, sequence: Sequence, parent: BlockKey) -> None:
        """Forget a sequence; nothing happens if it is not known."""
        watched = self._sequences.get(parent, {})
        watched.pop(sequence.id, None)
        if not watched:
            self._sequences.pop(parent, None)

    def behind(self, parent: BlockKey) -> list[Sequence]:
        """Return the sequences with a tail behind `parent`. Pure."""
        return [
            sequence
            for sequence in self._sequences.get(parent, {}).values()
            if sequence.computed_len % self._block_size
        ]

    def check_integrity(self, sequences: Mapping[SequenceId, Sequence]) -> None:
        """Assert that only live sequences are known, each behind its last full block, and all with a tail."""
        known = [
            (sequence, parent) for parent, watched in self._sequences.items() for sequence in watched.values()
        ]
        for sequence, parent in known:
            assert sequences.get(sequence.id) is sequence
            assert sequence.last_key == parent
        ids = {sequence.id for sequence, _ in known}
        assert all(sequence.id in ids for sequence in sequences.values() if sequence.computed_len)
