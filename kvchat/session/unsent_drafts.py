"""Unsent drafts: text that was in the editor when a window closed, stored until its conversation is opened
again.

One file for each text, named by its session, or by `new` for a conversation that has not begun, in the clear
or encrypted like the conversations. A file is written once, so windows that close together take nothing from
each other; a lock on it says that a window is taking it.
"""

import fcntl
import json
import os
import re
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kvchat.errors import StorageError
from kvchat.platform.encryptor import Encryptor
from kvchat.platform.private_files import system_errors_as
from kvchat.session.encryption.side_files import EncryptedFiles

_NOT_BEGUN = "new"
_ASIDE = "damaged-"


@dataclass(frozen=True, slots=True, kw_only=True)
class LentDraft:
    """What is stored for a conversation, empty for nothing, and what is to be said of what cannot be read."""

    text: str = ""
    complaint: str = ""


class DraftStore:
    """The unsent messages of one person, in a directory for their owner alone; None: nothing is stored.

    Raises:
        StorageError: from every method, where a file cannot be read or written.
    """

    def __init__(self, directory: Path | None, encryptor: Encryptor | None) -> None:
        self._is_kept = directory is not None
        self._files = EncryptedFiles(directory or Path(), encryptor, b"unsent")

    def keep(self, session_id: str | None, text: str, branch: str | None = None) -> None:
        """Store a text behind what is stored for a session, None for the conversation that has not begun.

        Args:
            branch: of the session, that it is for; None: for any.

        Effect: durable when this returns. What is stored already is not read: damage there does no harm.
        """
        if not self._is_kept:
            return
        name = session_id or _NOT_BEGUN
        number = 1 + max((_number(file, name) for file in self._stored(name)), default=0)
        file = self._files.file(f"{name}.{number:06d}-{secrets.token_hex(4)}")
        with system_errors_as(StorageError, f"what you have not sent cannot be kept in {file}"):
            self._files.write(file, json.dumps({"branch": branch, "texts": [text]}).encode())

    def holds(self, session_id: str) -> bool:
        """Return whether anything is stored for a session."""
        return bool(self._stored(session_id))

    def owners(self) -> frozenset[str]:
        """Return the sessions that anything is stored for, also what is damaged."""
        names = {file.stem.removeprefix(_ASIDE).partition(".")[0] for file in self._all()}
        return frozenset(names - {_NOT_BEGUN})

    @contextmanager
    def lent(self, session_id: str | None, elsewhere: Collection[str] = ()) -> Iterator[LentDraft]:
        """Lend what is stored for a session, to nobody else meanwhile; after the block it is removed.

        Where the block fails, or the process dies in it, all is still stored. What is damaged is set aside
        under another name.

        Args:
            elsewhere: branches whose texts stay here. What is for a branch that is gone goes to any other.
        """
        with ExitStack() as locks:
            files = [file for file in self._stored(session_id or _NOT_BEGUN) if _is_locked(file, locks)]
            texts: list[str] = []
            complaints = []
            for file in tuple(files):
                try:
                    branch, found = self._texts(file)
                    if branch in elsewhere:
                        files.remove(file)
                    else:
                        texts += found
                except (ValueError, TypeError, KeyError):
                    files.remove(file)
                    complaints.append(_set_aside(file))
            yield LentDraft(text="\n".join(texts), complaint="\n".join(complaints))
            for file in files:
                self._remove(file)

    def forget(self, session_id: str | None) -> None:
        if not self._is_kept:
            return
        name = session_id or _NOT_BEGUN
        with system_errors_as(StorageError, f"cannot read {self._files.directory}"):
            unfinished = [*self._files.directory.glob(f".{name}.*")]  # by a process that was killed
        for file in (*self._stored(name), *self._stored(_ASIDE + name), *unfinished):
            self._remove(file)

    def copy_to(self, encryptor: Encryptor | None) -> None:
        """Write every intact text once more, encrypted with `encryptor`, or in the clear."""
        target = EncryptedFiles(self._files.directory, encryptor, b"unsent")
        for file in self._all():
            with (
                system_errors_as(StorageError, f"{file} cannot be written in another way"),
                suppress(FileNotFoundError, ValueError),
            ):
                target.write(target.file(file.stem), self._files.read(file))

    def _remove(self, file: Path) -> None:
        with system_errors_as(StorageError, f"{file} cannot be removed"):
            self._files.remove(file)

    def _all(self) -> Sequence[Path]:
        with system_errors_as(StorageError, f"cannot read {self._files.directory}"):
            return self._files.all() if self._is_kept else ()

    def _stored(self, name: str) -> Sequence[Path]:
        """Return the files of one conversation, in the order in which they were written."""
        stems = {file.stem: file for file in self._all()}
        return [stems[stem] for stem in sorted(stems) if stem == name or stem.startswith(f"{name}.")]

    def _texts(self, file: Path) -> tuple[str | None, list[str]]:
        """Return the branch that a file is for, None for any, and its texts."""
        with system_errors_as(StorageError, f"cannot read {file}"):
            data = self._files.read(file)
        stored = json.loads(data)
        if isinstance(stored, list):  # as it was written before texts were for branches
            stored = {"branch": None, "texts": stored}
        return stored["branch"], [str(text) for text in stored["texts"]]


def _number(file: Path, name: str) -> int:
    found = re.match(r"\d+", file.stem[len(name) + 1 :])
    return 0 if found is None else int(found[0])


def _is_locked(file: Path, locks: ExitStack) -> bool:
    """Lock a file until `locks` end; return False where another window has it, or has taken it."""
    with system_errors_as(StorageError, f"cannot read {file}"):
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            locks.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(descriptor), os.stat(file))
        except (BlockingIOError, FileNotFoundError):
            return False


def _set_aside(file: Path) -> str:
    """Take a damaged file out of the way, and return what is to be said of it."""
    aside = file.with_name(_ASIDE + file.name)
    try:
        file.rename(aside)
    except OSError:
        aside = file
    return f"something you had not sent is damaged; remove the file {aside} when you need it no more"
