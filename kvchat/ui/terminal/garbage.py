"""Garbage collection schedule.

A full collection stops every thread, the one that draws and the one that decodes: for a tenth of a second and
more where a long conversation is shown. So all of it is looked through only while nothing is being done, and
only what was made since the engine was loaded; while an answer streams nothing is looked through at all.
"""

import gc
from functools import cache

_YOUNG_OBJECTS, _YOUNG_ROUNDS = 1000, 5
"""Little is looked through at a time once everything is imported: what is young takes milliseconds then."""
_NEVER = 1 << 30
_ENOUGH = 30
"""Collections of what is a little older since the last full one, after which that is worth its time."""
_TOO_MANY = 1000
"""After so many memory matters more than a pause."""


class GarbageSchedule:
    """Takes full collections from Python, and gives them back when it is released."""

    def __init__(self) -> None:
        self._thresholds = gc.get_threshold()
        self._was_frozen = is_some_frozen()
        gc.set_threshold(*self._thresholds[:2], _NEVER)

    def settle(self) -> None:
        """Take what loading created out of all later collections.

        Where somebody else has taken things out, they stay as they are: all that is out comes back at once.
        """
        gc.collect()
        if not self._was_frozen:
            gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_ROUNDS, _NEVER)

    def begin_turn(self) -> None:
        gc.disable()

    def end_turn(self) -> None:
        gc.enable()

    def look(self, *, is_quiet: bool) -> None:
        """Collect everything if that is worth it and does not disturb. Call now and then.

        Args:
            is_quiet: nobody would notice.
        """
        if gc.isenabled() and gc.get_count()[2] >= (_ENOUGH if is_quiet else _TOO_MANY):
            gc.collect()

    def release(self) -> None:
        """Leave the collector as it was found, and at work. May be called twice."""
        if not self._was_frozen:
            gc.unfreeze()
        gc.set_threshold(*self._thresholds)
        gc.enable()


@cache
def is_some_frozen() -> bool:
    """Say whether somebody else has taken objects out of all collections.

    Asked once: they are counted one by one, which takes a tenth of a second where much is imported.
    """
    return gc.get_freeze_count() > 0
