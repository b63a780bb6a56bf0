"""What was written and not sent when a window closed, kept until the conversation is opened again.

One file for each session, and one for the conversation that has not begun, in the clear or sealed like the
conversations.
"""

import json
from pathlib import Path

from kvchat.errors import StorageError
from kvchat.sealing.sealer import Sealer
from kvchat.session.sealed_files import SealedFiles

_NOT_BEGUN = "new"


class UnsentShelf:
    """The unsent messages of one person.

    Args:
        directory: where their files are; it is made for its owner alone. None: nothing is kept.
        sealer: what they are sealed with; None: they are in the clear.

    Raises:
        StorageError: from every method, where a file cannot be read or written.
    """

    def __init__(self, directory: Path | None, sealer: Sealer | None) -> None:
        self._files = None if directory is None else SealedFiles(directory, sealer, b"unsent")

    def keep(self, session_id: str | None, text: str) -> None:
        """Keep a text for a session, None for the conversation that has not begun, behind what is kept there.

        Durable when this returns.
        """
        if self._files is None:
            return
        file = self._files.file(session_id or _NOT_BEGUN)
        kept = [*_texts(self._files, file), text]
        try:
            self._files.write(file, json.dumps(kept).encode())
        except OSError as error:
            raise StorageError(
                f"what you have not sent cannot be kept in {file}: {error.strerror or error}"
            ) from error

    def holds(self, session_id: str) -> bool:
        """Return whether anything is kept for a session."""
        return self._files is not None and self._files.file(session_id).exists()

    def take(self, session_id: str | None) -> str:
        """Return what is kept for a session, empty for nothing, and keep it no longer."""
        if self._files is None:
            return ""
        text = "\n".join(_texts(self._files, self._files.file(session_id or _NOT_BEGUN)))
        self.forget(session_id)
        return text

    def forget(self, session_id: str | None) -> None:
        if self._files is None:
            return
        file = self._files.file(session_id or _NOT_BEGUN)
        try:
            self._files.remove(file)
        except OSError as error:
            raise StorageError(f"{file} cannot be removed: {error.strerror or error}") from error

    def copy_to(self, sealer: Sealer | None) -> None:
        """Write every text once more as another shelf in this place keeps it."""
        if self._files is None:
            return
        target = UnsentShelf(self._files.directory, sealer)
        for file in self._files.all():
            target.forget(file.stem)  # from a time when it was stopped half way
            for text in _texts(self._files, file):
                target.keep(file.stem, text)


def _texts(files: SealedFiles, file: Path) -> list[str]:
    try:
        return [str(text) for text in json.loads(files.read(file))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, TypeError) as error:
        raise StorageError(
            f"what you had not sent, in {file}, is damaged; remove the file to have this said no more"
        ) from error
