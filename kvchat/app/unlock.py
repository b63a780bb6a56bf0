"""Unlocking: detects an encrypted store and opens it with its key."""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from getpass import getpass
from pathlib import Path
from types import ModuleType

from kvchat.app.config import PASSPHRASE_VARIABLES, Settings
from kvchat.errors import EncryptionError, StorageError, UsageError
from kvchat.platform.encryptor import Encryptor, require_packages
from kvchat.platform.key_file import (
    KeyFile,
    KeyKind,
    KeyState,
    forget_key,
    key_path,
    read_key,
    secret_of,
    write_key,
)
from kvchat.platform.paths import Paths
from kvchat.platform.private_files import make_private

PASSPHRASE, PASSPHRASE_FD, NEW_PASSPHRASE = PASSPHRASE_VARIABLES

_MAX_BYTES = 1 << 16


def given() -> bytes | None:
    """Return the passphrase that was given without being asked for, None if none was.

    Raises: UsageError: the descriptor cannot be read.
    """
    if number := os.environ.get(PASSPHRASE_FD):
        return secret_of(_read_descriptor(number))
    written = os.environ.get(PASSPHRASE)
    return None if written is None else secret_of(written)


def given_new() -> bytes | None:
    """Return the passphrase that is to be used from now on, None if none was given."""
    written = os.environ.get(NEW_PASSPHRASE)
    return None if written is None else accepted(secret_of(written))


def ask(words: str) -> bytes:
    """Ask for a passphrase on the terminal, without showing it.

    Raises: EncryptionError: there is no terminal.
    """
    if not _has_terminal():
        raise EncryptionError(
            "there is no terminal to ask for the passphrase of the conversations: set"
            f" {PASSPHRASE}, or {PASSPHRASE_FD} to a descriptor to read it from"
        )
    try:
        return secret_of(getpass(words))
    except EOFError as error:
        raise EncryptionError("no passphrase was given") from error


def ask_new() -> bytes:
    """Ask for a new passphrase twice.

    Raises: EncryptionError: there is no terminal; UsageError: it is empty, or they differ.
    """
    first = accepted(ask("new passphrase: "))
    if ask("repeat it: ") != first:
        raise UsageError("the two passphrases differ; nothing was changed")
    return first


def accepted(secret: bytes) -> bytes:
    """Return a passphrase that is to be used from now on.

    Raises: UsageError: it is empty.
    """
    if not secret:
        raise UsageError("an empty passphrase protects nothing; choose another one")
    return secret


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
        raise UsageError(
            f"{PASSPHRASE_FD}={number} is not a descriptor that text can be read from"
        ) from error


_SERVICE = "kvchat"
_MOST_TRIES = 3
# What the disk tier keeps in the clear: see `BlockDirectory`.
_PLAIN_CACHE = ("blocks", "kept", "held", "quarantine", "index.db", "index.db-wal", "index.db-shm")


class PassphraseMissing(EncryptionError):
    """There is a passphrase, and nobody was to be asked for it."""


def unlocked(settings: Settings, *, may_ask: bool = True) -> Settings:
    """Return the settings with the key of an encrypted store; as they are where nothing is encrypted.

    Args:
        may_ask: ask for a passphrase on the terminal if none was given.

    Raises:
        EncryptionError: there is no key, or it is another one; the message says what to do.
        StorageError: the key file is damaged, or encryption is just being turned on or off.
    """
    key = key_in_use(settings.paths)
    if key is None:
        return settings
    encryptor = Encryptor(data_key_of(key, may_ask=may_ask))
    return replace(settings, engine=replace(settings.engine, encryptor=encryptor))


def opens_unasked(settings: Settings) -> bool:
    """Whether a process that is started from here opens the store and asks nobody.

    Args:
        settings: opened, as `unlocked` returns them.
    """
    if settings.engine.encryptor is None:
        return True
    key = key_in_use(settings.paths)
    # A descriptor has been read by now, and is not handed on.
    is_given = PASSPHRASE in os.environ and not os.environ.get(PASSPHRASE_FD)
    return key is None or key.kind is KeyKind.KEYRING or is_given


def key_in_use(paths: Paths) -> KeyFile | None:
    """Return the key file of an encrypted store, None where nothing is encrypted.

    Effect: finishes or takes back what was interrupted while it was turned on or off.

    Raises: StorageError: it is damaged, or encryption is just being turned on or off.
    """
    place = key_path(paths.data_dir)
    key = read_key(place)
    if key is None or key.state is KeyState.ON:
        return key
    with alone(paths):
        key = read_key(place)
        return key if key is None or key.state is KeyState.ON else settle(paths, key)


def settle(paths: Paths, key: KeyFile) -> KeyFile | None:
    """End what was begun, as far as the database got: its own first bytes say what it is."""
    from kvchat.engine.memory.disk.block_encryption import encrypted_home
    from kvchat.session.database.backups import forget_backups
    from kvchat.session.database.plain_tables import is_encrypted
    from kvchat.session.encryption.rewrite import converting_path
    from kvchat.session.encryption.side_files import forget_other

    database = paths.sessions_db
    with _told(database):
        converting_path(database).unlink(missing_ok=True)
        is_now_encrypted = is_encrypted(database)
        for directory in (paths.packs_dir, paths.unsent_dir):
            forget_other(directory, encrypted=is_now_encrypted)
        if is_now_encrypted:
            if key.state is KeyState.TURNING_ON:
                forget_backups(database)
                for name in _PLAIN_CACHE:  # it can be computed again
                    _remove(paths.cache_dir / name)
            key = replace(key, state=KeyState.ON)
            write_key(key_path(paths.data_dir), key)
            return key
        if key.state is KeyState.TURNING_OFF:
            forget_backups(database)
        _remove(encrypted_home(paths.cache_dir, key.name))
        forget_key(key_path(paths.data_dir))
        return None


@contextmanager
def alone(paths: Paths) -> Iterator[None]:
    """Keep other processes from turning encryption on or off meanwhile.

    Raises: StorageError: one is at it.
    """
    with _told(paths.data_dir):
        make_private(paths.data_dir)
        lock = key_path(paths.data_dir).with_name("sessions.key.lock")
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(
                "another kvchat is just turning encryption on or off; wait until it has finished"
            ) from error
        yield
    finally:
        os.close(descriptor)


def data_key_of(key: KeyFile, *, may_ask: bool = True) -> bytes:
    """Return the data key, with the secret from the keyring, the environment or the terminal.

    Raises: EncryptionError: there is none, or it is another one; the message says what to do.
    """
    require_packages()
    if key.kind is KeyKind.KEYRING:
        return _unwrapped(key, from_keyring(key), "the key in the system's keyring does not fit")
    secret = given()
    if secret is not None:
        return _unwrapped(key, secret, "the passphrase is wrong")
    if not may_ask:
        raise PassphraseMissing("the passphrase was not given")
    for _ in range(_MOST_TRIES - 1):
        with suppress(EncryptionError):
            return key.unwrapped(ask("passphrase: "))
    return _unwrapped(key, ask("passphrase: "), "wrong passphrase")


def from_keyring(key: KeyFile) -> bytes:
    """Return the secret that the system's keyring keeps for a key file.

    Raises: EncryptionError: there is no keyring, it is locked, or it has no such key.
    """
    name = _name_in_keyring(key)
    with _keyring_told() as keyring:
        kept = keyring.get_password(_SERVICE, name)
    if not kept:
        raise EncryptionError(
            f"the system's keyring has no key {name!r} of kvchat: unlock the keyring in which it was put, or"
            " put it back there from a backup"
        )
    try:
        return bytes.fromhex(kept)
    except ValueError as error:
        raise EncryptionError(
            f"what the system's keyring has under {name!r} is not a key of kvchat"
        ) from error


def put_into_keyring(key: KeyFile, secret: bytes) -> None:
    """Keep a key file's secret in the system's keyring.

    Raises: EncryptionError: there is no keyring, or it is locked.
    """
    with _keyring_told() as keyring:
        keyring.set_password(_SERVICE, _name_in_keyring(key), secret.hex())


def forget_in_keyring(key: KeyFile) -> None:
    """Remove a key file's secret from the system's keyring; nothing happens if it is not there."""
    if key.kind is KeyKind.KEYRING:
        with suppress(EncryptionError), _keyring_told() as keyring:
            keyring.delete_password(_SERVICE, _name_in_keyring(key))


def _name_in_keyring(key: KeyFile) -> str:
    # Another one each time the key is wrapped: until the new file is written, the old one needs its secret.
    return f"{key.name}.{key.salt[:4].hex()}"


def _unwrapped(key: KeyFile, secret: bytes, refusal: str) -> bytes:
    try:
        return key.unwrapped(secret)
    except EncryptionError as error:
        raise EncryptionError(
            f"{refusal}: nothing was opened or changed; give the one that was set with `kvchat encrypt`"
        ) from error


@contextmanager
def _keyring_told() -> Iterator[ModuleType]:
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError as error:
        raise EncryptionError(
            "the system's keyring needs packages that are not installed: pip install 'kvchat[encryption]'"
        ) from error
    try:
        yield keyring
    except KeyringError as error:
        raise EncryptionError(
            f"the system's keyring cannot be used: {error}; unlock it, or use a passphrase instead"
        ) from error


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{error.filename or path}: {error.strerror or error}") from error


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
