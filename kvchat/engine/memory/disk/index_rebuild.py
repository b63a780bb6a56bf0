"""Looking at every block file, so that the index says again what is there.

It takes seconds for many blocks: done after a loss of the index or of power, and when garbage is collected.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from kvchat.engine.api.ids import GroupId
from kvchat.engine.memory.disk.block_encryption import BlockEncryption, DiskKey
from kvchat.engine.memory.disk.block_file import (
    SUFFIX,
    TEMPORARY_SUFFIX,
    FoundBlock,
    block_path,
    parse_header,
)
from kvchat.engine.memory.disk.index import BlockIndex, BlockName
from kvchat.engine.memory.disk.io import (
    SystemFiles,
    storage_errors,
    subdirectories,
    sync_directories,
    unlink_if_there,
)
from kvchat.engine.memory.disk.quarantine import Quarantine
from kvchat.errors import BlockDamaged, BlockMissing, StorageError

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 5.0
"""How long files that could not be looked at are left alone; twice as long each time that did not help."""
_LONGEST_UNSEEN_S = 3600.0
_ADOPTED_AT_ONCE = 1000
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_BLOCK_FILE = re.compile(rf"([0-9a-f]{{64}})\.(\d{{1,9}}){re.escape(SUFFIX)}")
_TEMPORARY_FILE = re.compile(rf"\..+\.([0-9a-z]+){re.escape(TEMPORARY_SUFFIX)}")


class IndexRebuild:
    """Adds rows for files without one, drops rows without a file, and sets aside what is no block."""

    def __init__(
        self,
        blocks_dir: Path,
        files: SystemFiles,
        encryption: BlockEncryption,
        index: BlockIndex,
        quarantine: Quarantine,
        clock: Callable[[], float],
    ) -> None:
        self._blocks_dir = blocks_dir
        self._files = files
        self._encryption = encryption
        self._index = index
        self._quarantine = quarantine
        self._clock = clock
        self._unseen_s: float | None = None
        self._look_again_s = LOOK_AGAIN_S
        self._has_seen_all = True

    def is_due_again(self) -> bool:
        """Whether not all files could be looked at when that was tried last, some time ago."""
        unseen_s = self._unseen_s
        return unseen_s is not None and not 0 <= self._clock() - unseen_s < self._look_again_s

    def begin(self) -> None:
        """Note that all files are to be looked at now, whatever could not be before."""
        self._unseen_s, self._look_again_s = self._clock(), LOOK_AGAIN_S

    def wait_longer(self) -> None:
        """Leave what cannot be looked at this time either alone for twice as long."""
        self._look_again_s = min(2 * self._look_again_s, _LONGEST_UNSEEN_S)

    def look(self, is_alive: Callable[[str], bool]) -> None:
        """Look at every file. O(all).

        Args:
            is_alive: of a writer's id; temporary files of others are removed.
        """
        self._unseen_s, self._has_seen_all = self._clock(), True
        settled, unsettled = self._index.names()
        seen: set[BlockName] = set()
        found: list[FoundBlock] = []
        with storage_errors(self._blocks_dir):
            for fingerprint, path in self._files_found():
                if match := _BLOCK_FILE.fullmatch(path.name):
                    name = (fingerprint, DiskKey(bytes.fromhex(match[1])), GroupId(int(match[2])))
                    seen.add(name)
                    if name not in settled and name not in unsettled:
                        found += self._identified(fingerprint, path)
                elif (match := _TEMPORARY_FILE.fullmatch(path.name)) and not is_alive(match[1]):
                    unlink_if_there(self._files, path)
                if len(found) >= _ADOPTED_AT_ONCE:
                    self._adopt(found)
                    found = []
            self._adopt(found)
        self._index.drop(settled - seen)

    def end(self) -> None:
        """Note that everything was done that follows from a look."""
        if self._has_seen_all:
            self._unseen_s = None

    def adopt(self, fingerprint: bytes, path: Path) -> bool:
        """Add the row of a file without one; False if it was no block of this fingerprint, now set aside."""
        found = self._identified(fingerprint, path)
        with storage_errors(path.parent):
            self._adopt(found)
        return bool(found)

    def _files_found(self) -> Iterator[tuple[bytes, Path]]:
        """Yield whatever lies where block files would, with the fingerprint that it lies under.

        Raises: OSError: the directory of all blocks cannot be read.
        """
        for home in subdirectories(self._files, self._blocks_dir):
            if _FINGERPRINT.fullmatch(home.name):
                for directory in self._listed(home, partial(subdirectories, self._files)):
                    for file in self._listed(directory, partial(_listing, self._files)):
                        yield bytes.fromhex(home.name), file

    def _listed(self, directory: Path, read: Callable[[Path], list[Path]]) -> list[Path]:
        """Return what `read` finds in a directory; nothing where its names cannot be read now."""
        try:
            return read(directory)
        except OSError as error:
            self._has_seen_all = False
            reason = error.strerror or error
            log.warning("the blocks in %s cannot be looked at now and stay: %s", directory, reason)
            return []

    def _identified(self, fingerprint: bytes, path: Path) -> list[FoundBlock]:
        """Return what a file says it is; nothing if it is no block of this fingerprint, now set aside, or if
        it cannot be looked at now.
        """
        try:
            found = parse_header(path, self._encryption)
            if found.fingerprint != fingerprint:
                raise BlockDamaged(f"The block file {path} was written for another model.")
        except BlockMissing:
            return []
        except BlockDamaged:
            self._quarantine.take(path)
            return []
        except StorageError:
            self._has_seen_all = False
            return []
        return [replace(found, modified_s=min(found.modified_s, self._clock()))]

    def _adopt(self, found: Sequence[FoundBlock]) -> None:
        names = map(self._index.name_of, found)
        sync_directories(self._files, {block_path(self._blocks_dir, *name).parent for name in names})
        self._index.add(found)


def _listing(files: SystemFiles, path: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in files.entries(path)]
    except FileNotFoundError:
        return []
