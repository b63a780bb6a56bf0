"""The blocks and tails behind one parent, in the order of their ids."""

from bisect import bisect_left
from collections.abc import Sequence

from kvchat.engine.api.ids import BlockKey


class Siblings:
    """Sorted, so that those with the longest common run with given ids stand side by side."""

    def __init__(self) -> None:
        self._sorted: list[tuple[tuple[int, ...], BlockKey]] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, token_ids: tuple[int, ...], key: BlockKey) -> None:
        """Add one that is not there yet."""
        self._sorted.insert(bisect_left(self._sorted, (token_ids, key)), (token_ids, key))

    def remove(self, token_ids: tuple[int, ...], key: BlockKey) -> None:
        """Remove one that is there."""
        del self._sorted[self._sorted.index((token_ids, key), bisect_left(self._sorted, (token_ids, key)))]

    def nearest(self, token_ids: Sequence[int], most: int) -> list[BlockKey]:
        """Return those before and behind the place of `token_ids`, at most `most` on either side. None of
        the others has a longer run in common with them than each of these on its side. Pure.
        """
        place = bisect_left(self._sorted, (tuple(token_ids),))
        return [key for _, key in self._sorted[max(0, place - most) : place + most]]
