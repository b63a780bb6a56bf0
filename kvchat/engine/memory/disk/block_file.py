"""One block of one group as one safetensors file: how it is written, what is checked before it is believed.

Layout of a file:

    [0, 8)            length of the header, u64 little-endian
    [8, 8 + header)   JSON: `__metadata__` with the block's identity and checksum, then one entry per region;
                      padded with spaces so that the payload starts at a multiple of 8
    [8 + header, end) payload: the regions in the order of the layout, without gaps

The header is a function of what the reader already knows (fingerprint, key, parent, token ids, layout) and of
the checksum. So a reader never parses it: it builds the header it expects and compares bytes, and a file that
claims anything else, however large or hostile, is damaged. Only `parse_header`, which finds files again when
the index is lost, reads JSON, and bounds its length first.
"""

import errno
import json
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from kvchat.engine.api.ids import KEY_BYTES, BlockKey, GroupId, block_key, from_u32le, u32le
from kvchat.engine.formats.spec import ITEM_BYTES
from kvchat.engine.kernels.read_block.native import (
    BytesDiffer,
    FileHead,
    HeadDiffers,
    ReadTargets,
    read_block,
)
from kvchat.engine.memory.disk.block_encryption import BlockEncryption, DiskKey
from kvchat.engine.memory.disk.io import (
    SYSTEM,
    Buffer,
    SystemFiles,
    at_once,
    make_all_private,
    read_all,
    storage_errors,
    write_all,
)
from kvchat.errors import BlockDamaged, BlockMissing, StorageError

if TYPE_CHECKING:
    from xxhash import xxh3_128

FORMAT = "kvchat.block.v1"
SUFFIX = ".safetensors"
TEMPORARY_SUFFIX = ".tmp"

_LENGTH = struct.Struct("<Q")
_NO_CHECKSUM = "0" * 32
_OPENING = f'{{"__metadata__":{{"format":"{FORMAT}","xxh3":"'
_CHECKSUM_START = _LENGTH.size + len(_OPENING)
_CHECKSUM_END = _CHECKSUM_START + len(_NO_CHECKSUM)
_OTHER_BYTES = "its checksum disagrees with its bytes"
_OTHER_BLOCK = (
    "it is not the block that its name says, or was written for another model, format or block size"
)
_DAMAGE = frozenset({0, errno.EIO, errno.ELOOP, errno.ENXIO, errno.EISDIR})
"""It ended early, the medium does not give it, or something else stands in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One tensor inside a block's run of bytes, such as `layers.3.k` `[H_kv, P, D]`.

    `dtype` is the name that safetensors uses, one of `ITEM_BYTES`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


Layout = tuple[Region, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """What a block is. Fewer than block_size token ids make it a tail.

    A tail's payload has a full block's size; whoever hands it over clears the slots that hold no token.
    """

    key: BlockKey
    parent: BlockKey
    group: GroupId
    token_ids: tuple[int, ...]

    @classmethod
    def of(cls, group: GroupId, parent: BlockKey, token_ids: Sequence[int]) -> "BlockHeader":
        """Return what one group has of the block that these ids make behind another."""
        ids = tuple(token_ids)
        return cls(key=block_key(parent, ids), parent=parent, group=group, token_ids=ids)


@dataclass(frozen=True, kw_only=True)
class BlockForm:
    """What all blocks of one group of a model have in common."""

    fingerprint: bytes
    block_size: int
    layout: Layout

    @cached_property
    def payload_bytes(self) -> int:
        return sum(region.nbytes for region in self.layout)

    @cached_property
    def entries(self) -> str:
        """The regions as a file's header has them. Rendering them takes longer than the rest of a header."""
        rendered = ""
        start = 0
        for region in self.layout:
            end = start + region.nbytes
            entry = {"dtype": region.dtype, "shape": region.shape, "data_offsets": [start, end]}
            rendered += f",{json.dumps(region.name)}:{json.dumps(entry, separators=(',', ':'))}"
            start = end
        return rendered


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """Everything a block's file must agree with, besides its payload."""

    form: BlockForm
    header: BlockHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBlock:
    """What a file says about itself, its key recomputed, its payload not yet verified."""

    fingerprint: bytes
    header: BlockHeader
    block_size: int
    num_bytes: int
    modified_s: float


def file_name(name: DiskKey, group: int) -> str:
    return f"{name.hex()}.{group}{SUFFIX}"


def block_path(blocks_dir: Path, fingerprint: bytes, name: DiskKey, group: int) -> Path:
    """Return a block's place: `<fingerprint>/<first two digits of the name>/<name>.<group>.safetensors`."""
    file = file_name(name, group)
    # One string, not four joins: matching a long prompt looks at hundreds of files.
    return Path(f"{blocks_dir}/{fingerprint.hex()}/{file[:2]}/{file}")


def temporary_path(path: Path, writer: str) -> Path:
    """Return where a writer puts a block's bytes until they are whole."""
    return path.with_name(f".{path.name}.{writer}{TEMPORARY_SUFFIX}")


def file_bytes(identity: FileIdentity) -> int:
    """Return how long a block's file in the clear is. Looks at no byte of its payload."""
    return len(_render_blank(identity)) + identity.form.payload_bytes


def render_head(identity: FileIdentity, payload: memoryview) -> bytes:
    """Return the file's bytes before the payload. The checksum covers them, itself blank, and the payload."""
    blank = _render_blank(identity)
    digest = _checksum(blank)
    digest.update(payload)
    return _signed(blank, digest.hexdigest())


@dataclass(frozen=True, slots=True)
class DueFile:
    """A file that is to be written. `temporary`: where its bytes are until they are whole."""

    path: Path
    temporary: Path
    parts: Sequence[Buffer]


def create_files(files: SystemFiles, due: Sequence[DueFile]) -> None:
    """Create block files durably, and the directories that they need: temporary names, bytes and fsync of
    all, renames, fsync of their directories. No file gets its name before all of them are synced.

    Effect: blocks until the bytes are on the medium; what may be waited for side by side is, from the first
    byte on. After an error no temporary file is left, unless it cannot be removed either; some files may have
    their names.

    Raises: StorageError: disk full, read-only, no permission.
    """
    directories = [one.path.parent for one in due]
    with storage_errors(directories[0]):
        try:
            make_all_private(files, directories)
            _create(files, due)
        except FileNotFoundError:
            # Another process removed a directory because it was empty.
            make_all_private(files, directories)
            _create(files, due)


def _create(files: SystemFiles, due: Sequence[DueFile]) -> None:
    try:
        with ExitStack() as opened:
            descriptors = []
            for one in due:
                descriptors.append(files.create(one.temporary))
                opened.callback(files.close, descriptors[-1])
            at_once(partial(_fill, files), list(zip(descriptors, due, strict=True)))
        for one in due:
            files.rename(one.temporary, one.path)
    except BaseException:
        for one in due:
            with suppress(OSError):
                files.unlink(one.temporary)
        raise
    at_once(files.sync_dir, list(dict.fromkeys(one.path.parent for one in due)))


def _fill(files: SystemFiles, file: tuple[int, DueFile]) -> None:
    """Write a file's bytes, and wait until they are on the medium."""
    descriptor, due = file
    write_all(files, descriptor, due.parts)
    files.sync(descriptor)


def read_file(
    files: SystemFiles,
    path: Path,
    identity: FileIdentity,
    payload: memoryview,
    turn: Lock,
    encryption: BlockEncryption,
) -> None:
    """Fill `payload` and verify all of the file. Not mapped: a truncated map kills.

    Args:
        turn: held while the medium is read, and not while the bytes are verified.
        encryption: how the file lies on disk.

    Raises:
        BlockMissing: there is no such file.
        BlockDamaged: any byte of it is not what the block must be; `payload` is then worthless.
        StorageError: it cannot be opened or read now, which says nothing of its bytes.
    """
    blank = _render_blank(identity)
    head = bytearray(len(blank))
    due = [memoryview(head), payload]
    landing = encryption.landing(due)
    with turn, _opened(files, path, sum(map(len, landing))) as descriptor:
        read_all(files, descriptor, landing)
    try:
        encryption.open(path, landing, due)
    except ValueError as error:
        raise BlockDamaged(f"The block file {path} is damaged: {error}.") from error
    digest = _checksum(blank)
    digest.update(payload)
    if head != _signed(blank, digest.hexdigest()):
        is_this_block = _signed(bytes(head), _NO_CHECKSUM) == blank
        reason = _OTHER_BYTES if is_this_block else _OTHER_BLOCK
        raise BlockDamaged(f"The block file {path} is damaged: {reason}.")


def scatter_file(files: SystemFiles, path: Path, identity: FileIdentity, places: ReadTargets) -> None:
    """Fill a block's places in a pool from a file in the clear, and verify all of it; otherwise as
    `read_file`. One call outside the interpreter's lock.

    Effect: after an error what the places hold is worthless.
    """
    blank = _render_blank(identity)
    with _opened(files, path, len(blank) + places.num_bytes) as descriptor:
        try:
            read_block(descriptor, FileHead(blank=blank, checksum_start=_CHECKSUM_START), places)
        except HeadDiffers:
            raise BlockDamaged(f"The block file {path} is damaged: {_OTHER_BLOCK}.") from None
        except BytesDiffer:
            raise BlockDamaged(f"The block file {path} is damaged: {_OTHER_BYTES}.") from None


@contextmanager
def _opened(files: SystemFiles, path: Path, num_bytes: int) -> Iterator[int]:
    """Give a regular file of exactly this length to read."""
    try:
        descriptor = files.open(path)
    except FileNotFoundError as error:
        raise BlockMissing(f"The block file {path} is gone; its tokens are computed again.") from error
    except OSError as error:
        raise _unread(path, "opened", error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BlockDamaged(f"{path} is not a regular file.")
        if status.st_size != num_bytes:
            raise BlockDamaged(f"The block file {path} is damaged: {status.st_size} bytes, not {num_bytes}.")
        yield descriptor
    except OSError as error:
        raise _unread(path, "read", error) from error
    finally:
        files.close(descriptor)


def _unread(path: Path, verb: str, error: OSError) -> BlockDamaged | StorageError:
    """Return what a refusal says of a file: that it is no good, or nothing, as where this process has no
    descriptor, memory or permission for it.
    """
    words = f"The block file {path} cannot be {verb}: {error.strerror}."
    return BlockDamaged(words) if error.errno in _DAMAGE else StorageError(words)


def parse_header(path: Path, encryption: BlockEncryption) -> FoundBlock:
    """Read what a file says it is. The payload is not read; `read_file` verifies it before use.

    Raises:
        BlockMissing: there is no such file.
        BlockDamaged: no block file of this format, or its name is not its key.
        StorageError: it cannot be opened or read now.
    """
    try:
        with open(path, "rb", opener=lambda *_: SYSTEM.open(path)) as file:
            status = os.fstat(file.fileno())
            head, num_payload_bytes = encryption.read_head(path, file, status.st_size)
        entries = json.loads(head[_LENGTH.size :])
        found = _found(entries, status)
        end = max(entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__")
        if end != num_payload_bytes:
            raise ValueError("its length is wrong")
        if path.name != file_name(encryption.name(found.header.key), found.header.group):
            raise ValueError("its name is not its key")
    except FileNotFoundError as error:
        raise BlockMissing(f"The block file {path} is gone.") from error
    except OSError as error:
        raise _unread(path, "read", error) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise BlockDamaged(f"The block file {path} is damaged: {error}.") from error
    return found


def _render_blank(identity: FileIdentity) -> bytes:
    """Return the file's bytes before the payload, with a blank checksum."""
    form, header = identity.form, identity.header
    # Digits all of it, so nothing needs escaping; it is rendered for every block that is read.
    text = (
        f'{_OPENING}{_NO_CHECKSUM}","fingerprint":"{form.fingerprint.hex()}","key":"{header.key.hex()}",'
        f'"parent":"{header.parent.hex()}","group":"{header.group}","block_size":"{form.block_size}",'
        f'"token_ids":"{u32le(header.token_ids).hex()}"}}{form.entries}}}'
    )
    text += " " * (-len(text) % 8)
    return _LENGTH.pack(len(text)) + text.encode()


def _checksum(data: bytes) -> "xxh3_128":
    """Return an XXH3-128 over data, to be continued. Imported here: who has no disk tier need not have it."""
    from xxhash import xxh3_128

    return xxh3_128(data)


def _signed(blank: bytes, checksum: str) -> bytes:
    return blank[:_CHECKSUM_START] + checksum.encode() + blank[_CHECKSUM_END:]


def _found(entries: dict[str, dict[str, str]], status: os.stat_result) -> FoundBlock:
    says = entries["__metadata__"]
    if says["format"] != FORMAT:
        raise ValueError(f"its format is {says['format']!r}")
    key, parent, fingerprint = (_digest(says[name]) for name in ("key", "parent", "fingerprint"))
    token_ids = from_u32le(bytes.fromhex(says["token_ids"]))
    block_size = int(says["block_size"])
    if key != block_key(BlockKey(parent), token_ids) or not 0 < len(token_ids) <= block_size:
        raise ValueError("its key is not that of its token ids")
    header = BlockHeader(
        key=BlockKey(key),
        parent=BlockKey(parent),
        group=GroupId(int(says["group"])),
        token_ids=tuple(token_ids),
    )
    return FoundBlock(
        fingerprint=fingerprint,
        header=header,
        block_size=block_size,
        num_bytes=status.st_size,
        modified_s=status.st_mtime,
    )


def _digest(text: str) -> bytes:
    digest = bytes.fromhex(text)
    if len(digest) != KEY_BYTES:
        raise ValueError("a digest has the wrong length")
    return digest
