"""The data key of an encrypted store as it lies beside it, wrapped by a passphrase or by the keyring.

Changing the passphrase wraps the same data key anew, so nothing that is encrypted is written again. The file
is stored twice, since without it everything is lost; each copy has a checksum, and one that is damaged or old
is written again from the other.

    {"v": 1, "name": ..., "state": ..., "kind": ..., "log_n": ..., "salt": ..., "wrapped": ...}  + newline
    blake2b of the line before, in hex                                                           + newline
"""

import json
import os
import unicodedata
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import blake2b, scrypt
from pathlib import Path

from kvchat.errors import EncryptionError, StorageError
from kvchat.platform.encryptor import (
    KEY_BYTES,
    NONCE_BYTES,
    SALT_BYTES,
    DecryptionFailed,
    Encryptor,
    cipher_of,
    decrypted,
)
from kvchat.platform.private_files import remove_private, system_errors_as, write_private

LOG_N = 17
"""Cost of a guess: 128 MiB and about half a second."""

_MAX_LOG_N = 20
_BLOCK = 8
_MAX_BYTES = 1 << 16
_VERSION = 1
_REFUSED = "the key does not open this store"
_ADVICE = "; check permissions and free space"


class KeyState(StrEnum):
    """Between the first and the last step of turning it on or off, the database itself says what it is."""

    TURNING_ON = "turning on"
    ON = "on"
    TURNING_OFF = "turning off"


class KeyKind(StrEnum):
    """What the data key is wrapped by."""

    PASSPHRASE = "passphrase"
    KEYRING = "keyring"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFile:
    """A wrapped data key.

    Args:
        name: of the data key, see `Encryptor.name`.
        log_n: cost of scrypt; a key from the keyring is random and costs nothing.
        wrapped: nonce, data key encrypted, tag.
    """

    name: str
    state: KeyState
    kind: KeyKind
    log_n: int
    salt: bytes
    wrapped: bytes

    def unwrapped(self, secret: bytes) -> bytes:
        """Return the data key.

        Raises: EncryptionError: the secret is another one.
        """
        cipher = cipher_of(_wrapping_key(secret, self.kind, self.log_n, self.salt))
        place = _place(self.name, self.kind, self.log_n)
        try:
            return decrypted(cipher, self.wrapped[:NONCE_BYTES], self.wrapped[NONCE_BYTES:], place)
        except DecryptionFailed as error:
            raise EncryptionError(_REFUSED) from error


def wrap(data_key: bytes, secret: bytes, kind: KeyKind, log_n: int = LOG_N) -> KeyFile:
    """Return a file for a data key that is about to be used."""
    name = Encryptor(data_key).name
    salt, nonce = os.urandom(SALT_BYTES), os.urandom(NONCE_BYTES)
    cipher = cipher_of(_wrapping_key(secret, kind, log_n, salt))
    wrapped = nonce + cipher.encrypt(nonce, data_key, _place(name, kind, log_n))
    return KeyFile(name=name, state=KeyState.TURNING_ON, kind=kind, log_n=log_n, salt=salt, wrapped=wrapped)


def new_data_key() -> bytes:
    return os.urandom(KEY_BYTES)


def secret_of(passphrase: str) -> bytes:
    """Return a passphrase as bytes that do not depend on how a keyboard composes its letters."""
    return unicodedata.normalize("NFC", passphrase).encode()


def key_path(data_dir: Path) -> Path:
    return data_dir / "sessions.key"


def backup_path(path: Path) -> Path:
    return path.with_name(path.name + ".backup")


def read_key(path: Path) -> KeyFile | None:
    """Return the key file, None where there is none. A lost, damaged or older copy is written again.

    Raises: StorageError: no copy can be read.
    """
    copies = (path, backup_path(path))
    if not any(copy.exists() for copy in copies):
        return None
    found = [_read(copy) for copy in copies]
    chosen = found[0] or found[1]
    if chosen is None:
        raise StorageError(
            f"{path} is damaged, and its copy too: without them nothing can be decrypted; "
            "put one back from a backup of yours"
        )
    for copy, content in zip(copies, found, strict=True):
        if content != chosen:
            with suppress(OSError):
                _write(copy, chosen)
    return chosen


def write_key(path: Path, key: KeyFile) -> None:
    """Write both copies durably, one after the other, so that one is whole at any time.

    Raises: StorageError: they cannot be written.
    """
    with system_errors_as(StorageError, f"{path} cannot be written", _ADVICE):
        for copy in (path, backup_path(path)):
            _write(copy, key)


def forget_key(path: Path) -> None:
    """Remove both copies, durably.

    Raises: StorageError: they cannot be removed.
    """
    with system_errors_as(StorageError, f"{path} cannot be written", _ADVICE):
        for left in (path, backup_path(path), *path.parent.glob(f".{path.name}.*")):  # also half written
            remove_private(left)


def _write(path: Path, key: KeyFile) -> None:
    values = asdict(key) | {"v": _VERSION, "salt": key.salt.hex(), "wrapped": key.wrapped.hex()}
    line = json.dumps(values, sort_keys=True).encode()
    write_private(path, line + b"\n" + _checksum(line) + b"\n")


def _read(path: Path) -> KeyFile | None:
    try:
        with open(path, "rb") as file:
            line, checksum, rest = file.read(_MAX_BYTES).split(b"\n")
        if checksum != _checksum(line) or rest:
            return None
        values = json.loads(line)
        key = KeyFile(
            name=values["name"],
            state=KeyState(values["state"]),
            kind=KeyKind(values["kind"]),
            log_n=values["log_n"],
            salt=bytes.fromhex(values["salt"]),
            wrapped=bytes.fromhex(values["wrapped"]),
        )
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    is_bearable = isinstance(key.log_n, int) and 1 <= key.log_n <= _MAX_LOG_N
    return key if is_bearable and isinstance(key.name, str) else None


def _checksum(line: bytes) -> bytes:
    return blake2b(line, digest_size=16, person=b"kvchat.keyfile").hexdigest().encode()


def _wrapping_key(secret: bytes, kind: KeyKind, log_n: int, salt: bytes) -> bytes:
    if kind is KeyKind.KEYRING:
        return blake2b(salt, key=secret, person=b"kvchat.keyring", digest_size=KEY_BYTES).digest()
    num_bytes = 256 * _BLOCK << log_n
    return scrypt(secret, salt=salt, n=1 << log_n, r=_BLOCK, p=1, maxmem=num_bytes, dklen=KEY_BYTES)


def _place(name: str, kind: KeyKind, log_n: int) -> bytes:
    return f"kvchat key {name} {kind} {log_n}".encode()
