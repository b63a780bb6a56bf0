"""Files on a disk that refuses: from one operation on, or only that one."""

import errno
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from kvchat.engine.memory.disk.io import SystemFiles


class FailingFiles(SystemFiles):
    """Refuses the operation number `at` (None: none), and those behind it unless `is_passing`.

    Closing and removing always work, as on a full disk; with EROFS removing is refused too.
    """

    gives_descriptors = False

    def __init__(self, code: int = errno.ENOSPC) -> None:
        self.at: int | None = None
        self.is_passing = False
        self.num_done = 0
        self.code = code

    def fail(self, at: int | None, *, is_passing: bool = False) -> None:
        """Begin to count anew."""
        self.at, self.is_passing, self.num_done = at, is_passing, 0

    @property
    def has_refused(self) -> bool:
        return self.at is not None and self.num_done > self.at

    def create(self, path: Path) -> int:
        self._count()
        return super().create(path)

    def write(self, descriptor: int, parts: Sequence[memoryview]) -> int:
        if self.at is not None and self.num_done == self.at:
            data = memoryview(b"".join(parts))
            super().write(descriptor, [data[: len(data) // 2]])  # the disk takes a part before it is full
        self._count()
        return super().write(descriptor, parts)

    def read(self, descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
        if self.code == errno.EIO:
            self._count()
        return super().read(descriptor, parts, offset)

    def sync(self, descriptor: int) -> None:
        self._count()

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        if self.code == errno.EROFS:
            self._count()
        super().unlink(path)

    def make_dir(self, path: Path) -> None:
        self._count()
        super().make_dir(path)

    def sync_dir(self, path: Path) -> None:
        self._count()

    def commit(self, connection: sqlite3.Connection) -> None:
        try:
            self._count()
        except OSError as error:
            is_full = error.errno == errno.ENOSPC
            refusal = sqlite3.OperationalError("database or disk is full" if is_full else "disk I/O error")
            refusal.sqlite_errorcode = sqlite3.SQLITE_FULL if is_full else sqlite3.SQLITE_IOERR
            raise refusal from error
        super().commit(connection)

    def _count(self) -> None:
        self.num_done += 1
        is_behind = self.at is not None and self.num_done > self.at
        if is_behind and not (self.is_passing and self.num_done > self.at + 1):
            raise OSError(self.code, os.strerror(self.code))
