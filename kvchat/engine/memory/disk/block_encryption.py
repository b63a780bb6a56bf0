"""Block naming and encryption on disk: in the clear under their keys, or encrypted under opaque names.

A encrypted file:

    [0, 16)           `kvchat.sealed.1` and a zero byte
    [16, 48)          salt, from which and from the key of the store this file's key is derived
    [48, 56)          length of the encrypted head, u64 little-endian
    [56, 56 + head)   the head of a plain file, encrypted, and its tag
    [56 + head, end)  the payload of a plain file, encrypted, and its tag

Both parts are bound to the file's fingerprint and name. Opened, they are the bytes of a plain file, and are
verified as such.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NewType

from kvchat.engine.api.ids import KEY_BYTES, BlockKey, from_u32le, u32le
from kvchat.engine.memory.disk.io import Buffer
from kvchat.platform.encryptor import (
    RECORD_OVERHEAD,
    SALT_BYTES,
    TAG_BYTES,
    DecryptionFailed,
    Encryptor,
    decrypt_into,
    decrypted,
    new_salt,
)

DiskKey = NewType("DiskKey", bytes)
"""What stands for a block's key on disk: itself, or a digest of it that only the store's key tells."""

MAX_HEADER_BYTES = 4 << 20
"""Far above any real header: 64 token ids take 0.5 KB, each region about 100 bytes."""

_LENGTH = struct.Struct("<Q")
_MAGIC = b"kvchat.sealed.1\0"
_SALT_END = len(_MAGIC) + SALT_BYTES
_HEAD_START = _SALT_END + _LENGTH.size
_HEAD_NONCE, _PAYLOAD_NONCE = bytes(12), bytes(11) + b"\1"


class BlockEncryption:
    """How blocks lie on disk: in the clear. Others lie otherwise, see `EncryptedBlocks`.

    Attributes:
        keeps_order: whether entries of the index stand in the order of the token ids in them.
        entry_overhead: bytes of an entry beside four for each token.
        file_overhead: bytes of a file beside head and payload.
    """

    keeps_order = True
    entry_overhead = 0
    file_overhead = 0

    def home(self, cache_dir: Path) -> Path:
        """Return where files and index are."""
        return cache_dir

    def name(self, key: BlockKey) -> DiskKey:
        return DiskKey(key)

    def entry(self, key: BlockKey, parent: BlockKey, token_ids: Sequence[int]) -> bytes:
        """Return what the index keeps of a block."""
        return u32le(token_ids)

    def entry_of(
        self, name: DiskKey, parent: DiskKey, entry: bytes
    ) -> tuple[BlockKey, BlockKey, tuple[int, ...]]:
        """Return key, parent and token ids of an entry; no token ids where it is not what was written."""
        ids = () if len(entry) % 4 else tuple(from_u32le(entry))
        return BlockKey(name), BlockKey(parent), ids

    def encrypted(self, path: Path, head: bytes, payload: memoryview) -> Sequence[Buffer]:
        """Return the bytes of a file."""
        return head, payload

    def landing(self, parts: Sequence[memoryview]) -> Sequence[memoryview]:
        """Return where a file's bytes are read to, of which `open` makes `parts`: head and payload."""
        return parts

    def open(self, path: Path, landed: Sequence[memoryview], parts: Sequence[memoryview]) -> None:
        """Fill `parts` from what was read.

        Raises: ValueError: a byte is not what it must be.
        """

    def read_head(self, path: Path, file: BinaryIO, num_bytes: int) -> tuple[bytes, int]:
        """Read a file's head; return it, and how long the payload is if the whole file has `num_bytes`.

        Raises: ValueError, struct.error: it has none.
        """
        length = file.read(_LENGTH.size)
        num_head_bytes = _bounded(length, num_bytes)
        return length + file.read(num_head_bytes), num_bytes - _LENGTH.size - num_head_bytes


PLAIN = BlockEncryption()


class EncryptedBlocks(BlockEncryption):
    """Blocks encrypted with one key, in a directory of its own: other stores may share the cache
    directory."""

    keeps_order = False
    entry_overhead = 2 * KEY_BYTES + RECORD_OVERHEAD
    file_overhead = _HEAD_START + 2 * TAG_BYTES

    def __init__(self, encryptor: Encryptor) -> None:
        self._encryptor = encryptor

    def home(self, cache_dir: Path) -> Path:
        return encrypted_home(cache_dir, self._encryptor.name)

    def name(self, key: BlockKey) -> DiskKey:
        return DiskKey(self._encryptor.pseudonym(key))

    def entry(self, key: BlockKey, parent: BlockKey, token_ids: Sequence[int]) -> bytes:
        place = _entry_place(self.name(key), self.name(parent))
        return self._encryptor.encrypt(place, key + parent + u32le(token_ids))

    def entry_of(
        self, name: DiskKey, parent: DiskKey, entry: bytes
    ) -> tuple[BlockKey, BlockKey, tuple[int, ...]]:
        try:
            found = self._encryptor.decrypt(_entry_place(name, parent), entry)
            ids = tuple(from_u32le(found[2 * KEY_BYTES :]))
            return BlockKey(found[:KEY_BYTES]), BlockKey(found[KEY_BYTES : 2 * KEY_BYTES]), ids
        except ValueError:
            return BlockKey(bytes(KEY_BYTES)), BlockKey(bytes(KEY_BYTES)), ()

    def encrypted(self, path: Path, head: bytes, payload: memoryview) -> Sequence[Buffer]:
        salt, place = new_salt(), _place(path)
        cipher = self._encryptor.of_file(place, salt)
        encrypted_head = cipher.encrypt(_HEAD_NONCE, head, place)
        return (
            _opening(salt, len(encrypted_head)),
            encrypted_head,
            cipher.encrypt(_PAYLOAD_NONCE, payload, place),
        )

    def landing(self, parts: Sequence[memoryview]) -> Sequence[memoryview]:
        return [memoryview(bytearray(sum(map(len, parts)) + self.file_overhead))]

    def open(self, path: Path, landed: Sequence[memoryview], parts: Sequence[memoryview]) -> None:
        (file,) = landed
        head, payload = parts
        head_end = _HEAD_START + len(head) + TAG_BYTES
        salt, place = bytes(file[len(_MAGIC) : _SALT_END]), _place(path)
        if file[:_HEAD_START] != _opening(salt, head_end - _HEAD_START):
            raise DecryptionFailed("it does not begin as it must")
        cipher = self._encryptor.of_file(place, salt)
        head[:] = decrypted(cipher, _HEAD_NONCE, file[_HEAD_START:head_end], place)
        decrypt_into(cipher, _PAYLOAD_NONCE, file[head_end:], place, payload)

    def read_head(self, path: Path, file: BinaryIO, num_bytes: int) -> tuple[bytes, int]:
        opening = file.read(_HEAD_START)
        num_head_bytes = _bounded(opening[_SALT_END:], num_bytes)
        if not opening.startswith(_MAGIC):
            raise DecryptionFailed("it does not begin as it must")
        place = _place(path)
        cipher = self._encryptor.of_file(place, opening[len(_MAGIC) : _SALT_END])
        head = decrypted(cipher, _HEAD_NONCE, file.read(num_head_bytes), place)
        return head, num_bytes - len(opening) - num_head_bytes - TAG_BYTES


def encryption_of(encryptor: Encryptor | None) -> BlockEncryption:
    """Return how blocks lie: encrypted, or in the clear for None."""
    return PLAIN if encryptor is None else EncryptedBlocks(encryptor)


def encrypted_home(cache_dir: Path, key_name: str) -> Path:
    """Return where the blocks of an encrypted store are, by the name of its key."""
    return cache_dir / f"sealed-{key_name}"


def _opening(salt: bytes, num_head_bytes: int) -> bytes:
    return _MAGIC + salt + _LENGTH.pack(num_head_bytes)


def _bounded(length: bytes, num_bytes: int) -> int:
    num_head_bytes: int = _LENGTH.unpack(length)[0]
    if num_head_bytes > min(MAX_HEADER_BYTES, num_bytes):
        raise ValueError("its header is too long")
    return num_head_bytes


def _place(path: Path) -> bytes:
    return f"{path.parent.parent.name}/{path.name}".encode()


def _entry_place(name: DiskKey, parent: DiskKey) -> bytes:
    return b"entry\0" + name + parent
