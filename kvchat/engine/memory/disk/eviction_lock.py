"""One writer at a time lets blocks go, or sees that none may, whatever process it is in."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

PATIENCE_S = 5.0
_POLL_S = 0.002


class EvictionLock:
    """A lock (flock) on a file beside the blocks, of which the kernel lets go when its process ends.

    It may be taken again by whoever has it. Called under the directory's lock. Two who make room at once for
    the same bytes would let go of twice as much, no more than that: so where the lock cannot be had, since a
    process was stopped that has it or the directory is read-only, things go on without.
    """

    def __init__(self, path: Path, patience_s: float = PATIENCE_S) -> None:
        self._path = path
        self._patience_s = patience_s
        self._is_held = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have the lock inside."""
        with ExitStack() as end:
            if not self._is_held:
                with suppress(OSError):
                    self._take(end)
                self._is_held = True
                end.callback(self._note_free)
            yield

    def _take(self, end: ExitStack) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        end.callback(os.close, descriptor)
        until_s = monotonic() + self._patience_s
        while not _is_taken(descriptor) and monotonic() < until_s:
            sleep(_POLL_S)

    def _note_free(self) -> None:
        self._is_held = False


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
