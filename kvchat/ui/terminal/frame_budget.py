"""Frame budget: limits drawing of streams so that the model gets the processor."""

import os
from collections.abc import Callable
from time import monotonic, thread_time
from typing import Final

SHARE_OF_ALL: Final = 0.02
"""Of all cores together, that drawing may take while an answer streams."""
LONGEST_S: Final = 0.3
"""However dear a drawing is, text comes as often as this."""


class FrameBudget:
    """Says when the next drawing is due. What counts is what the interface's thread has really spent, layout
    and everything else included, so a wide terminal or a slow machine is drawn less often.

    Args:
        share: of one core.
    """

    def __init__(
        self,
        share: float | None = None,
        clock: Callable[[], float] = monotonic,
        spent: Callable[[], float] = thread_time,
    ) -> None:
        self._share = share or min(0.5, SHARE_OF_ALL * (os.cpu_count() or 1))
        self._clock = clock
        self._spent = spent
        self._spent_s = spent()
        self._drawn_s = clock()

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the last drawing for what was spent since."""
        passed_s = self._clock() - self._drawn_s
        return passed_s >= min(LONGEST_S, (self._spent() - self._spent_s) / self._share)

    def begin(self) -> None:
        """Note that something is drawn now."""
        self._drawn_s, self._spent_s = self._clock(), self._spent()
