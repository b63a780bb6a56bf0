"""API key of an endpoint, this one or a server's, in a file that only its owner can read."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from kvchat.errors import ConfigError, StorageError
from kvchat.platform.private_files import make_private, system_errors_as

_KEY_BYTES = 24
OWN_LEN = 16
"""A shorter key of the endpoint here could be guessed."""


def read_key(file: Path, least_len: int = 1) -> str:
    """Return the key in a file.

    Raises:
        ConfigError: it cannot be read, others can read it too, or it is none, or too short.
    """
    with system_errors_as(ConfigError, f"cannot read the API key in {file}"):
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"others can read the API key in {file}: chmod 600 {file}")
        key = file.read_text(encoding="ascii", errors="replace").strip()
    if not key:
        raise ConfigError(f"there is no API key in {file}; it is one line of text")
    if len(key) < least_len or not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the API key in {file} must be one line of {least_len} or more ASCII characters")
    return key


def own_key(file: Path) -> str:
    """Return the key in a file, made now if there is none. Of two that make it at once one is first.

    Raises:
        ConfigError: see `read_key`.
        StorageError: it cannot be written.
    """
    with system_errors_as(StorageError, f"cannot write {file}"):
        make_private(file.parent)
        if not file.is_symlink() and not file.exists():
            _offer(file, f"kvchat-{secrets.token_urlsafe(_KEY_BYTES)}")
    return read_key(file, OWN_LEN)


def _offer(file: Path, key: str) -> None:
    """Give a key its file, unless another has it by now: it is there whole or not at all."""
    hidden = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(key + "\n")
        with suppress(FileExistsError):
            os.link(hidden, file)
    finally:
        hidden.unlink(missing_ok=True)
