"""Which live branches have a tail behind a given block: copy sources that have no name yet."""

from collections.abc import Mapping

from kvchat.engine.api.ids import BlockKey, SequenceId
from kvchat.engine.sequences.sequence import Sequence


class LiveTails:
    """Live branches by the key of their last full block."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._branches: dict[BlockKey, dict[SequenceId, Sequence]] = {}

    def watch(self, branch: Sequence, parent: BlockKey) -> None:
        self._branches.setdefault(parent, {})[branch.id] = branch

    def unwatch(self, branch: Sequence, parent: BlockKey) -> None:
        """Forget a branch; nothing happens if it is not known."""
        watched = self._branches.get(parent, {})
        watched.pop(branch.id, None)
        if not watched:
            self._branches.pop(parent, None)

    def behind(self, parent: BlockKey) -> list[Sequence]:
        """Return the branches with a tail behind `parent`. Pure."""
        return [
            branch
            for branch in self._branches.get(parent, {}).values()
            if branch.computed_len % self._block_size
        ]

    def check_integrity(self, branches: Mapping[SequenceId, Sequence]) -> None:
        """Assert that only live branches are known, each behind its last full block, and all with a tail."""
        known = [
            (branch, parent) for parent, watched in self._branches.items() for branch in watched.values()
        ]
        for branch, parent in known:
            assert branches.get(branch.id) is branch
            assert branch.last_key == parent
        ids = {branch.id for branch, _ in known}
        assert all(branch.id in ids for branch in branches.values() if branch.computed_len)
