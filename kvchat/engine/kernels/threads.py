"""Number of compute threads."""

import os

SMALL_MODEL_BYTES = 64 * 2**20
"""Below this a step is made of operations so short that handing them to a second thread costs more than it
saves, and on a busy machine each hand-over waits for the scheduler."""


def choose_threads(weight_bytes: int, wanted: int | None) -> int:
    """Return the number of threads for one operation.

    Args:
        weight_bytes: size of the model's weights.
        wanted: what the configuration asks for; None chooses.
    """
    if wanted is not None:
        return wanted
    return 1 if weight_bytes < SMALL_MODEL_BYTES else usable_cores()


def usable_cores() -> int:
    """Return how many processors this process may use: its affinity's, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
