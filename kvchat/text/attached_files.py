"""Attached files: read once, written before the message text, and folded where the message is shown.

Files come first, so that the model can read them while the question is still being typed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvchat.errors import UsageError
from kvchat.session.template.message_files import OPENING, split_files, with_files
from kvchat.text.figures import bytes_text, plural
from kvchat.text.fit_text import clean_text, one_line

MOST_BYTES = 4 * 2**20
PASTED = "pasted text"
LONG_PASTE_CHARACTERS = 8_000
LONG_PASTE_LINES = 200
_MOST_STRANGE = 0.02
"""More control and replacement characters than this share are no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A text that goes with the next message."""

    name: str
    text: str

    @property
    def summary(self) -> str:
        num_lines = self.text.count("\n") + 1
        return f"{self.name} · {bytes_text(len(self.text.encode()))} · {plural(num_lines, 'line')}"


def read_attachment(path: Path) -> Attachment:
    """Return a text file as an attachment.

    Raises:
        UsageError: it is not there, no text, too long, or cannot be read.
    """
    try:
        path = path.expanduser()
        if not path.is_file():
            kind = "a directory" if path.is_dir() else "no file" if path.exists() else "not there"
            raise UsageError(f"{path} is {kind}; name a text file")
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} has more than {bytes_text(MOST_BYTES)}; attach a part of it")
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except RuntimeError as error:  # `~name` of nobody
        raise UsageError(f"{path} is not there; name a text file") from error
    if looks_binary(text):
        raise UsageError(f"{path} is no text")
    return Attachment(name=path.name.replace('"', "'"), text=tidy(text))


def looks_binary(text: str) -> bool:
    """Return whether a text has what no text has: NUL, or many control or undecodable characters."""
    if "\0" in text:
        return True
    strange = sum((ord(one) < 32 and one not in "\t\n\r\f\x1b") or one == "\ufffd" for one in text)
    return strange > _MOST_STRANGE * len(text)


def is_long(text: str) -> bool:
    return len(text) > LONG_PASTE_CHARACTERS or text.count("\n") > LONG_PASTE_LINES


def cleaned(text: str) -> str:
    """Return a text with one kind of line ends and without control characters."""
    return clean_text(text.replace("\r\n", "\n").replace("\r", "\n"))


def tidy(text: str) -> str:
    """Return the same without line ends behind it."""
    return cleaned(text).rstrip("\n")


def before_message(attachments: Sequence[Attachment]) -> str:
    """Return what stands before the words of a message."""
    return with_files([(one.name, one.text) for one in attachments])


def split_message(text: str) -> tuple[tuple[Attachment, ...], str]:
    """Return the files of a message, and its words."""
    files, words = split_files(text)
    return tuple(Attachment(name=name, text=text) for name, text in files), words


def words_of(text: str) -> str:
    return split_message(text)[1]


def take_out_files(text: str) -> tuple[tuple[Attachment, ...], str]:
    """Return the files of several messages that stand under each other, and their words."""
    found, text = split_message(text)
    words = ""
    while (opening := re.search(rf"\n(?={OPENING.pattern})", text)) is not None:
        files, rest = split_message(text[opening.end() :])
        if not files:
            words, text = words + text[: opening.end()], text[opening.end() :]
            continue
        found += files
        text = text[: opening.end()] + rest
    return found, words + text


def shown_message(text: str) -> str:
    """Return a message with a line in the place of each file."""
    attachments, words = split_message(text)
    return "\n".join([*(f"▤ {one_line(one.summary)}" for one in attachments), words])
