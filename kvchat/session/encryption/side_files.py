"""Small files beside the database, in the clear or encrypted like it."""

from collections.abc import Sequence
from pathlib import Path

from kvchat.platform.encryptor import Encryptor
from kvchat.platform.private_files import (
    SYSTEM_NAMES,
    NamedFiles,
    remove_private,
    remove_unfinished,
    write_private,
)

_SUFFIXES = {False: ".json", True: ".sealed"}


class EncryptedFiles:
    """One directory of such files, each under a name; it is made for its owner alone.

    Args:
        encryptor: what they are encrypted with; None: they are in the clear.
        kind: of what they hold; an encrypted file opens as this kind alone, under its own name.

    Raises:
        OSError: from every method, where a file cannot be read or written.
    """

    def __init__(
        self, directory: Path, encryptor: Encryptor | None, kind: bytes, files: NamedFiles = SYSTEM_NAMES
    ) -> None:
        self.directory = directory
        self._files = files
        self._encryptor = encryptor
        self._kind = kind

    def all(self) -> Sequence[Path]:
        return sorted(self.directory.glob(f"[!.]*{_SUFFIXES[self._encryptor is not None]}"))

    def file(self, name: str) -> Path:
        return self.directory / (name + _SUFFIXES[self._encryptor is not None])

    def read(self, file: Path) -> bytes:
        """Return what a file holds.

        Raises: DecryptionFailed: it is not what was written there.
        """
        data = file.read_bytes()
        return data if self._encryptor is None else self._encryptor.decrypt(self._place(file), data)

    def write(self, file: Path, data: bytes) -> None:
        """Write a file whole or not at all; durable when this returns.

        Effect: what killed processes have left half written goes.
        """
        if self._encryptor is not None:
            data = self._encryptor.encrypt(self._place(file), data)
        remove_unfinished(self.directory, self._files)
        write_private(file, data, self._files)

    def remove(self, file: Path) -> None:
        """Remove a file, durably; nothing happens if there is none."""
        remove_private(file, self._files)

    def _place(self, file: Path) -> bytes:
        return self._kind + b"\0" + file.stem.encode()


def forget_other(directory: Path, *, encrypted: bool) -> None:
    """Remove the files that lie in the other way than the conversations, once these are settled.

    Raises: OSError: one cannot be removed.
    """
    for file in directory.glob(f"*{_SUFFIXES[not encrypted]}"):
        file.unlink(missing_ok=True)
