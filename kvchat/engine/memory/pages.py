"""Memory that begins with a page, for bytes on their way.

Copies between runs that lie alike within their pages take half as long as others, and only pages can be
written past the system's cache.
"""

import mmap as maps
from contextlib import suppress
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from threading import local
from typing import Final

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


class Pages(local):
    """One run for each thread, which it uses again."""

    def __init__(self) -> None:
        self._map = mmap(-1, PAGE, flags=MAP_PRIVATE | MAP_ANONYMOUS)

    def take(self, num_bytes: int) -> memoryview:
        """Return the first bytes of this thread's run; what was there before is lost."""
        if len(self._map) < num_bytes:
            self._map = mmap(-1, num_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        return memoryview(self._map)[:num_bytes]
