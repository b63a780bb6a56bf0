"""Behind which blocks names have come and gone lately."""

from collections import deque
from collections.abc import Set
from itertools import islice

from kvchat.engine.api.ids import BlockKey

MOST_REMEMBERED = 4096


class ChangeLog:
    """The parents of the names that came or went, newest last. Older ones are forgotten."""

    def __init__(self) -> None:
        self._parents: deque[BlockKey] = deque(maxlen=MOST_REMEMBERED)
        self.length = 0
        """Number of changes since the beginning."""

    def note(self, parent: BlockKey) -> None:
        self._parents.append(parent)
        self.length += 1

    def has_touched(self, parents: Set[BlockKey], since: int) -> bool:
        """Whether a name behind one of `parents` has come or gone since the journal had length `since`; True
        too if that is no longer known. Pure.
        """
        num_new = self.length - since
        if num_new > len(self._parents):
            return True
        return any(parent in parents for parent in islice(reversed(self._parents), num_new))
