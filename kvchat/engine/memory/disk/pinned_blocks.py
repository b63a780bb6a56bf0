"""Blocks on disk that are kept whatever room is needed: a small file for each name under which they are.

    [0, 32)         fingerprint
    [32, 32 + 32n)  names of the blocks as they are on disk
    [end - 16, end) blake2b of everything before

The files stand beside the blocks and not in the index, which may be lost at any time. One that is damaged
keeps nothing; while one cannot be read, nobody knows what is kept, and nothing goes.
"""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from hashlib import blake2b
from pathlib import Path

from kvchat.engine.api.ids import KEY_BYTES
from kvchat.engine.api.view import View, is_view, parse_view
from kvchat.engine.memory.disk.block_encryption import DiskKey
from kvchat.engine.memory.disk.io import SYSTEM, SystemFiles, read_whole
from kvchat.errors import ConfigError, StorageError
from kvchat.platform import private_files
from kvchat.platform.private_files import make_private, system_errors_as

_DIRECTORY = "views"


def note_view(cache_dir: Path, view: View) -> None:
    """Note that blocks are going to be computed over a view.

    Raises:
        StorageError: it cannot be written.
    """
    directory = cache_dir / _DIRECTORY
    with system_errors_as(StorageError, f"cannot write {directory}"):
        make_private(directory)
        (directory / str(view)).touch(mode=0o600)


def used_views(cache_dir: Path) -> tuple[View, ...]:
    """Return the views that were noted, in the order of their names. SystemFiles of other names say nothing.

    Raises:
        StorageError: it cannot be read, so that there may be any.
    """
    found: list[View] = []
    directory = cache_dir / _DIRECTORY
    names: list[str] = []
    with (
        system_errors_as(StorageError, f"cannot read {directory}", "; check its permissions"),
        suppress(FileNotFoundError, NotADirectoryError),
    ):
        names = sorted(os.listdir(directory))
    for name in names:
        if is_view(name):
            with suppress(ConfigError):
                found.append(parse_view(name))
    return tuple(found)


_DIGEST_BYTES = 16
_SUFFIX = ".keep"

Kept = frozenset[tuple[bytes, DiskKey]]
"""Fingerprints and names of blocks."""


class PinnedBlocks:
    """What is kept in one cache directory. May be called from several threads and processes."""

    def __init__(self, home: Path, files: SystemFiles = SYSTEM, place: str = "kept") -> None:
        """Args:
        home: where files and index of the blocks are.
        place: the directory in there.
        """
        self._files = files
        self._directory = home / place
        self._seen: tuple[tuple[str, int, int], ...] = ()
        self._kept: Kept = frozenset()

    def names(self) -> list[str]:
        """Return under which names blocks are kept, damaged files included.

        Raises: StorageError: it cannot be read now.
        """
        return [name.removesuffix(_SUFFIX) for name, _, _ in self._state()]

    def all(self) -> Kept:
        """Return what is kept now; the files are read again where they have changed.

        Raises: StorageError: one cannot be read now, so that anything may be kept.
        """
        seen = self._state()
        if seen != self._seen:
            self._kept = frozenset(entry for name, _, _ in seen for entry in self._read(name))
            self._seen = seen
        return self._kept

    def of(self, name: str) -> Kept:
        """Return what is kept under a name; nothing if there is no such file, or it is damaged.

        Raises: StorageError: it cannot be read now.
        """
        return frozenset(self._read(name + _SUFFIX))

    def keep(self, name: str, fingerprint: bytes, blocks: Iterable[DiskKey]) -> None:
        """Keep these blocks under a name, instead of what was kept under it. Durable when this returns.

        Raises: StorageError: it cannot be written; what was kept is kept still.
        """
        data = fingerprint + b"".join(blocks)
        file = self._directory / (name + _SUFFIX)
        self.remove_unfinished()
        with system_errors_as(StorageError, f"cannot write {file}"):
            private_files.write_private(file, data + _digest(data), self._files)

    def let_go(self, name: str) -> None:
        """Let blocks make room again; nothing happens if none are kept under this name.

        Raises: StorageError: the file cannot be removed.
        """
        file = self._directory / (name + _SUFFIX)
        with system_errors_as(StorageError, f"cannot remove {file}"):
            private_files.remove_private(file, self._files)

    def remove_unfinished(self) -> None:
        """Remove what a killed process has left half written."""
        private_files.remove_unfinished(self._directory, self._files)

    def _state(self) -> tuple[tuple[str, int, int], ...]:
        found: list[tuple[str, int, int]] = []
        with _read_errors(self._directory), suppress(FileNotFoundError):
            for entry in self._files.entries(self._directory):
                if entry.name.endswith(_SUFFIX):
                    with suppress(FileNotFoundError):  # let go of just now
                        state = entry.stat()
                        found.append((entry.name, state.st_mtime_ns, state.st_ino))
        return tuple(sorted(found))

    def _read(self, name: str) -> list[tuple[bytes, DiskKey]]:
        data = b""
        with _read_errors(self._directory / name), suppress(FileNotFoundError):
            data = read_whole(self._files, self._directory / name)
        data, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        if len(data) % KEY_BYTES or digest != _digest(data):
            return []
        fingerprint = data[:KEY_BYTES]
        starts = range(KEY_BYTES, len(data), KEY_BYTES)
        return [(fingerprint, DiskKey(data[start : start + KEY_BYTES])) for start in starts]


def _read_errors(path: Path) -> AbstractContextManager[None]:
    problem = f"{path} says which blocks stay on disk, and cannot be read"
    advice = "; check its permissions, or remove it to keep those blocks no longer"
    return system_errors_as(StorageError, problem, advice)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()
