"""Prompt of `kvchat ask`: documents first, the question last.

In this order two questions about one document begin with the same tokens, and share the document's blocks.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from kvchat.cli.output.standard_streams import is_input_closed
from kvchat.errors import UsageError
from kvchat.platform.private_files import system_errors_as

_STDIN = Path("-")
_ENCODING = "utf-8-sig"
_MOST_BYTES = 64 * 2**20
"""More than any model reads; a device that never ends has to end somewhere."""


def read_prompt(
    question: Sequence[str], files: Sequence[Path], stdin: BinaryIO | None, *, is_optional: bool = False
) -> str:
    """Return the message to send: standard input, then files, then the question, a blank line between them.

    Args:
        question: the words of the command line.
        files: files to put before the question; `-` is standard input at that place.
        stdin: standard input, None if it is a terminal.
        is_optional: nothing at all is an answer too, the empty string.

    Raises:
        UsageError: there is nothing to send, or a file cannot be read as text.
    """
    parts = []
    if _STDIN in files:
        if stdin is None:
            raise UsageError("-f - reads standard input, which is a terminal; pipe something into kvchat")
    elif stdin is not None:
        parts.append(_read_stdin(stdin))
    parts += [_read_stdin(stdin) if file == _STDIN and stdin else _read(file) for file in files]
    # Bytes of the command line that are no UTF-8 arrive as lone surrogates, which no database takes.
    parts.append(" ".join(question).encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    prompt = "\n\n".join(part.strip("\r\n") for part in parts if part.strip())
    if not prompt and not is_optional:
        raise UsageError("there is nothing to ask; try: kvchat ask 'What is a KV cache?'")
    return prompt


def piped_stdin() -> BinaryIO | None:
    """Return standard input unless it is a terminal or closed."""
    if is_input_closed() or sys.stdin.isatty():
        return None
    return sys.stdin.buffer


def _read_stdin(stdin: BinaryIO) -> str:
    with system_errors_as(UsageError, "cannot read standard input"):
        return _decode(stdin.read(_MOST_BYTES + 1), "standard input")


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return _decode(stream.read(_MOST_BYTES + 1), str(file))
    except IsADirectoryError as error:
        reason = f"{error.strerror}; name the files in it, each with -f"
        raise UsageError(f"cannot read {file}: {reason}") from error
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error


def _decode(data: bytes, name: str) -> str:
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{name} has more than 64 MiB, which no model reads; give a part of it")
    try:
        text = data.decode(_ENCODING)
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text; convert it, for example with iconv") from error
    if "\x00" in text:
        raise UsageError(f"{name} is not text: it has NUL characters")
    return text
