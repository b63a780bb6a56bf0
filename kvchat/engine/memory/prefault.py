"""Pages of a pool that are to be filled soon: the system clears them before anybody waits for that.

A pool is taken from the system as it is first written, and a page that was never written has to be cleared
then. Resuming a conversation right after a start would wait for all of its pages.
"""

import ctypes
import sys
from collections.abc import Iterable
from threading import Thread
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvchat.engine.memory.pages import PAGE

MOST_BYTES: Final = 256 << 20
"""Memory that is taken for what may be resumed, at the most."""
_POPULATE_WRITE = 23  # Linux's MADV_POPULATE_WRITE, since 5.14; changes no byte


def prefault(runs: Iterable[NDArray[np.uint8]]) -> Thread:
    """Have the pages of some runs of memory there soon, in a thread that is returned. No byte changes.

    Where the system cannot do that, they come as they are written.
    """
    thread = Thread(target=_populate, args=(list(runs),), name="kvchat-prefault", daemon=True)
    thread.start()
    return thread


def _populate(runs: list[NDArray[np.uint8]]) -> None:
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    for run in runs:
        start = run.ctypes.data // PAGE * PAGE
        end = -(-(run.ctypes.data + run.nbytes) // PAGE) * PAGE
        if madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _POPULATE_WRITE):
            return
