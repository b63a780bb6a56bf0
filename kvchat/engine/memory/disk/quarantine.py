"""Quarantine of damaged block files, kept for inspection."""

from contextlib import suppress
from pathlib import Path

from kvchat.engine.memory.disk.io import SystemFiles, storage_errors, unlink_if_there
from kvchat.platform.private_files import make_private

MAX_QUARANTINED = 16


class Quarantine:
    """A directory of files that were set aside. Its files hold token ids, as all blocks do."""

    def __init__(self, directory: Path, files: SystemFiles) -> None:
        self.directory = directory
        self._files = files

    def take(self, path: Path) -> None:
        """Move a damaged file here, where the newest few are kept; remove it where that fails."""
        try:
            make_private(self.directory, self._files)
            self._files.rename(path, self.directory / f"{path.parent.parent.name[:16]}.{path.name}")
            self._files.sync_dir(path.parent)
            entries = self._files.entries(self.directory)
            # A rename changes the time of the inode: that is when a file came here.
            newest_last = sorted(entries, key=lambda entry: entry.stat(follow_symlinks=False).st_ctime_ns)
            for old in newest_last[:-MAX_QUARANTINED]:
                self._files.unlink(Path(old.path))
        except OSError:
            with suppress(OSError):
                self._files.unlink(path)

    def num_bytes(self) -> int:
        """Return what is kept here; 0 where it cannot be told."""
        try:
            entries = self._files.entries(self.directory)
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
        except OSError:
            return 0

    def beside(self, limit_bytes: int) -> int:
        """Return what blocks may take of a limit: all of it where what is here has too much and goes."""
        aside_bytes = self.num_bytes()
        return limit_bytes if aside_bytes > limit_bytes // 2 else limit_bytes - aside_bytes

    def empty(self) -> None:
        """Remove everything, durably.

        Raises: StorageError: something cannot be removed.
        """
        with storage_errors(self.directory), suppress(FileNotFoundError):
            entries = self._files.entries(self.directory)
            for entry in entries:
                unlink_if_there(self._files, Path(entry.path))
            if entries:
                self._files.sync_dir(self.directory)
