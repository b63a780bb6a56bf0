"""Encryption at rest: AES-256-GCM under keys that are derived from one data key.

Every ciphertext is bound to its place: two swapped records fail to decrypt just like a changed one. A
record's nonce is a keyed digest of its place and content, so no state and no random number can repeat one for
other content; the price is that a record written again unchanged looks unchanged. Files are longer and pay no
such price: each is encrypted under a key of its own, drawn anew whenever one is written.
"""

import os
from hashlib import blake2b
from typing import TYPE_CHECKING

from kvchat.errors import EncryptionError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
SALT_BYTES = 32
TAG_BYTES = 16
NONCE_BYTES = 12
RECORD_OVERHEAD = NONCE_BYTES + TAG_BYTES
"""Bytes that an encrypted record takes beside its content."""


class DecryptionFailed(ValueError):
    """What was found in a place is not what was encrypted for it, or was encrypted with another key."""


class Encryptor:
    """Encrypts and decrypts with one data key. Stateless: any number of threads and processes may use it."""

    def __init__(self, data_key: bytes) -> None:
        """Derive the keys.

        Raises: EncryptionError: the package that encrypts is not installed.
        """
        assert len(data_key) == KEY_BYTES
        self.name = _digest(data_key, b"kvchat.keyname", b"", 8).hex()
        """Tells keys apart, and says nothing of this one."""
        self._cipher = cipher_of(_digest(data_key, b"kvchat.records", b""))
        self._nonce_key = _digest(data_key, b"kvchat.nonces", b"")
        self._pseudonym_key = _digest(data_key, b"kvchat.names", b"")
        self._file_key = _digest(data_key, b"kvchat.files", b"")

    def encrypt(self, place: bytes, data: bytes) -> bytes:
        """Return a record that decrypts in this place alone."""
        head = len(place).to_bytes(8, "little") + place
        nonce = blake2b(head + data, key=self._nonce_key, digest_size=NONCE_BYTES).digest()
        return nonce + self._cipher.encrypt(nonce, data, place)

    def decrypt(self, place: bytes, encrypted: bytes) -> bytes:
        """Return what was encrypted for a place.

        Raises: DecryptionFailed: these bytes were not.
        """
        return decrypted(self._cipher, encrypted[:NONCE_BYTES], encrypted[NONCE_BYTES:], place)

    def pseudonym(self, name: bytes) -> bytes:
        """Return 32 bytes that stand for a name and do not tell it to anybody without the key."""
        return blake2b(name, key=self._pseudonym_key, digest_size=KEY_BYTES).digest()

    def of_file(self, place: bytes, salt: bytes) -> "AESGCM":
        """Return the cipher of one file. With a new salt its nonces may be numbers."""
        assert len(salt) == SALT_BYTES
        return cipher_of(_digest(self._file_key, b"kvchat.file", salt + place))


def require_packages() -> None:
    """Make sure that something can be encrypted, before anybody is asked for a passphrase.

    Raises: EncryptionError: the package that encrypts is not installed.
    """
    cipher_of(bytes(KEY_BYTES))


def new_salt() -> bytes:
    return os.urandom(SALT_BYTES)


def cipher_of(key: bytes) -> "AESGCM":
    """Return the cipher of a key.

    Raises: EncryptionError: the package that encrypts is not installed.
    """
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise EncryptionError(
            "encryption needs packages that are not installed: pip install 'kvchat[encryption]'"
        ) from error
    return AESGCM(key)


def decrypted(cipher: "AESGCM", nonce: bytes, encrypted: bytes | memoryview, place: bytes) -> bytes:
    """Decrypt and verify.

    Raises: DecryptionFailed: a byte is not what it must be.
    """
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(nonce, encrypted, place)
    except (InvalidTag, ValueError) as error:
        raise DecryptionFailed("it does not open") from error


def decrypt_into(
    cipher: "AESGCM", nonce: bytes, encrypted: memoryview, place: bytes, out: memoryview
) -> None:
    """Decrypt and verify, into memory that is there; worthless after an error.

    Raises: DecryptionFailed: a byte is not what it must be.
    """
    from cryptography.exceptions import InvalidTag

    try:
        cipher.decrypt_into(nonce, encrypted, place, out)
    except (InvalidTag, ValueError) as error:
        raise DecryptionFailed("it does not open") from error


def _digest(key: bytes, purpose: bytes, data: bytes, digest_size: int = KEY_BYTES) -> bytes:
    return blake2b(data, key=key, person=purpose, digest_size=digest_size).digest()
