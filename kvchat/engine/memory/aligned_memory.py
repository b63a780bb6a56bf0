"""Memory that begins with a page, for bytes on their way.

Copies between runs that lie alike within their pages take half as long as others, and only pages can be
written past the system's cache.
"""

import mmap as maps
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from threading import Thread, local
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np  # commands that only list what is stored do without
    from numpy.typing import NDArray

PAGE: Final = 4096


def mapped(num_bytes: int, kind: type[mmap] = mmap) -> mmap:
    """Return a run of zeros, taken from the system as it is first written, in huge pages where it has them.

    Filling a new pool page by page takes twice as long as in huge ones.

    Raises: OSError, ValueError, OverflowError: it is not to be had.
    """
    run = kind(-1, num_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    if hasattr(maps, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them: the run works all the same
            run.madvise(maps.MADV_HUGEPAGE)
    return run


def _pages(num_bytes: int) -> memoryview:
    return memoryview(mmap(-1, num_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS))


class ThreadRun(local):
    """One run for each thread, which it uses again; it begins where a page does."""

    def __init__(self, allocate: Callable[[int], memoryview] = _pages) -> None:
        self._allocate = allocate
        self._run = memoryview(b"")

    def take(self, num_bytes: int) -> memoryview:
        """Return the first bytes of this thread's run; what was there before is lost."""
        if len(self._run) < num_bytes:
            self._run = self._allocate(num_bytes)
        return self._run[:num_bytes]


MOST_BYTES: Final = 256 << 20
"""Memory that is taken for what may be resumed, at the most."""
_POPULATE_WRITE = 23  # Linux's MADV_POPULATE_WRITE, since 5.14; changes no byte


def prefault(runs: Iterable["NDArray[np.uint8]"]) -> Thread:
    """Have the pages of some runs of memory there soon, in a thread that is returned. No byte changes.

    Where the system cannot do that, they come as they are written.
    """
    thread = Thread(target=_populate, args=(list(runs),), name="kvchat-prefault", daemon=True)
    thread.start()
    return thread


def _populate(runs: list["NDArray[np.uint8]"]) -> None:
    if sys.platform != "linux":
        return
    import ctypes  # by who fills a pool

    madvise = ctypes.CDLL(None).madvise
    for run in runs:
        start = run.ctypes.data // PAGE * PAGE
        end = -(-(run.ctypes.data + run.nbytes) // PAGE) * PAGE
        if madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _POPULATE_WRITE):
            return
