"""When Python may look for garbage.

A full collection stops every thread. While an answer streams it would make tokens wait for a tenth of a
second and more, so collections happen between turns, and only over what was made since the engine was loaded.
"""

import gc


class GarbageSchedule:
    """Turns the collector off for a turn and on again."""

    def __init__(self) -> None:
        self._was_enabled = gc.isenabled()

    def settle(self) -> None:
        """Take what loading created out of all later collections."""
        gc.collect()
        gc.freeze()

    def begin_turn(self) -> None:
        gc.disable()

    def end_turn(self) -> None:
        gc.enable()
        gc.collect()

    def release(self) -> None:
        """Leave the collector as it was found."""
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()
