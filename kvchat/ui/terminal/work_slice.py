"""Work slices: bounds how much is done at a time, so that the window never stalls."""

from collections.abc import Callable
from time import thread_time
from typing import Final

BUDGET_S: Final = 0.02
"""Of the interface's thread, for one portion with the layout that follows it."""
_LEAST = 2
"""What a portion costs whatever is in it is not to be paid for every single one."""
_FIRST = 4
_MOST = 20


class WorkSlice:
    """Says how many equal things to do at a time, from what the last of them took.

    Attributes:
        num: how many next, two at least.
    """

    def __init__(self, spent: Callable[[], float] = thread_time) -> None:
        self.num = _FIRST
        self._spent = spent
        self._began_s: float | None = None
        self._done = 0

    def begin(self, num: int) -> None:
        """Note that so many are done now."""
        self._began_s, self._done = self._spent(), num

    def end(self) -> None:
        """Note that they are done, with all that follows from them; does nothing without a beginning."""
        if self._began_s is None or not self._done:
            return
        took_s = max(self._spent() - self._began_s, 1e-6)
        self._began_s = None
        # At most twice as many as before: the next ones may be longer.
        self.num = max(_LEAST, min(_MOST, 2 * self._done, round(self._done * BUDGET_S / took_s)))
