"""Passphrase of an encrypted store, from a file descriptor, the environment or the terminal."""

import os
import sys
from collections.abc import Mapping
from getpass import getpass

from kvchat.app.config import PASSPHRASE_VARIABLES
from kvchat.errors import EncryptionError, UsageError
from kvchat.platform.key_file import secret_of

PASSPHRASE, PASSPHRASE_FD, NEW_PASSPHRASE = PASSPHRASE_VARIABLES

_MAX_BYTES = 1 << 16


def given(environ: Mapping[str, str]) -> bytes | None:
    """Return the passphrase that was given without being asked for, None if none was.

    Raises: UsageError: the descriptor cannot be read.
    """
    if number := environ.get(PASSPHRASE_FD):
        return secret_of(_read_descriptor(number))
    written = environ.get(PASSPHRASE)
    return None if written is None else secret_of(written)


def given_new(environ: Mapping[str, str]) -> bytes | None:
    """Return the passphrase that is to be used from now on, None if none was given."""
    written = environ.get(NEW_PASSPHRASE)
    return None if written is None else _accepted(written)


def ask(words: str) -> bytes:
    """Ask for a passphrase on the terminal, without showing it.

    Raises: EncryptionError: there is no terminal.
    """
    return secret_of(_ask(words))


def ask_new() -> bytes:
    """Ask for a new passphrase twice.

    Raises: EncryptionError: there is no terminal; UsageError: it is empty, or they differ.
    """
    first = _accepted(_ask("new passphrase: "))
    if secret_of(_ask("the same again: ")) != first:
        raise UsageError("the two passphrases differ; nothing was changed")
    return first


def accepted(secret: bytes) -> bytes:
    """Return a passphrase that is to be used from now on.

    Raises: UsageError: it is empty.
    """
    if not secret:
        raise UsageError("an empty passphrase protects nothing; choose another one")
    return secret


def _accepted(written: str) -> bytes:
    return accepted(secret_of(written))


def _ask(words: str) -> str:
    if not _has_terminal():
        raise EncryptionError(
            "there is no terminal to ask for the passphrase of the conversations: set"
            f" {PASSPHRASE}, or {PASSPHRASE_FD} to a descriptor to read it from"
        )
    try:
        return getpass(words)
    except EOFError as error:
        raise EncryptionError("no passphrase was given") from error


def _has_terminal() -> bool:
    """Whether somebody can be asked: standard input may be a document that the question is about."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()
    return True


def _read_descriptor(number: str) -> str:
    try:
        with os.fdopen(int(number), "rb") as file:
            return file.read(_MAX_BYTES).decode().rstrip("\r\n")
    except (ValueError, OSError) as error:
        raise UsageError(f"{PASSPHRASE_FD}={number} is no descriptor that text can be read from") from error
