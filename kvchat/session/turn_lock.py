"""Turn lock: one answer at a time in a session; later requests wait and continue from the turns before."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep

from kvchat.errors import StorageError
from kvchat.platform.private_files import make_private, system_errors_as
from kvchat.session.store import SessionStore
from kvchat.session.tree import Finish, SessionId

_POLL_S = 0.05


@contextmanager
def turn_lock(
    directory: Path, session_id: SessionId, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold a session alone among all who take this lock; waits for it, and calls `on_wait` again and again.

    The kernel lets go of the lock when the process ends, however it ends.

    Raises:
        StorageError: it cannot be written.
    """
    file = directory / f"{session_id}.lock"
    with system_errors_as(StorageError, str(file)):
        make_private(directory)
    descriptor = _held(file, on_wait)
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink()
        os.close(descriptor)


def _held(file: Path, on_wait: Callable[[], None]) -> int:
    """Return the descriptor of the lock file that has this name while its lock is held."""
    while True:
        with system_errors_as(StorageError, str(file)):
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            while not _is_locked(descriptor, file):
                on_wait()
                sleep(_POLL_S)
            # Whoever held it before has taken the name away: others may lock a new file already.
            with system_errors_as(StorageError, str(file)), suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(file)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_locked(descriptor: int, file: Path) -> bool:
    """Take the lock if nobody has it. Nobody waits in here: Python goes on with an interrupted `flock`."""
    with system_errors_as(StorageError, str(file)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def is_being_answered(store: SessionStore, session_id: SessionId) -> bool:
    """Whether an answer is being written in a session, in whatever process."""
    store.settle(session_id)
    leaf_id = store.branch(session_id, store.session(session_id).active_branch).leaf_id
    return leaf_id is not None and store.turn(leaf_id).finish is Finish.PARTIAL
