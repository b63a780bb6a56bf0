"""Packs: named system prompts, computed once and cached.

A pack is the system prompt of every conversation that begins with it. One file each, in the clear or
encrypted like the conversations. Its KV is in the cache, under the keys of the ids in the file; if it is lost
there, it is computed again.
"""

import json
import logging
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from kvchat.engine.api.ids import BlockKey, path_keys, root_key
from kvchat.errors import PackExists, PackNotFound, StorageError
from kvchat.platform.encryptor import Encryptor
from kvchat.platform.private_files import SYSTEM_NAMES, NamedFiles, system_errors_as
from kvchat.session.encryption.side_files import EncryptedFiles

log = logging.getLogger(__name__)

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A named beginning of conversations.

    Args:
        id: names its file, and pins its blocks.
        text: the system prompt and the documents behind it.
        sources: the files that it was made from.
        fingerprint: hex; with the ids it names the blocks.
        token_ids: what every conversation with this beginning begins with.
        created_at: when it was made; to templates that tell the time its conversations began then.
    """

    id: str
    name: str
    text: str
    sources: tuple[str, ...]
    model: str
    adapter: str
    fingerprint: str
    cache_format: str
    token_ids: tuple[int, ...]
    block_size: int
    created_at: float

    @property
    def keys(self) -> list[BlockKey]:
        """The keys of its blocks, that of the tail last."""
        return path_keys(root_key(bytes.fromhex(self.fingerprint)), self.token_ids, self.block_size)


class PackStore:
    """All packs of one person.

    Raises:
        StorageError: from every method, where a file cannot be read or written.
    """

    def __init__(
        self, directory: Path, encryptor: Encryptor | None, files: NamedFiles = SYSTEM_NAMES
    ) -> None:
        self._directory = directory
        self._files = EncryptedFiles(directory, encryptor, b"pack", files)

    def all(self) -> tuple[Pack, ...]:
        """Return all packs by name. One that is damaged is left out, and logged."""
        found = []
        for file in self._files.all():
            try:
                found.append(self._read(file))
            except StorageError as error:
                log.warning("%s", error)
        return tuple(sorted(found, key=lambda pack: pack.name))

    def find(self, name: str) -> Pack:
        """Return the pack of a name.

        Raises:
            PackNotFound: there is none; the message names those that are.
        """
        packs = self.all()
        for pack in packs:
            if pack.name == name:
                return pack
        known = ", ".join(pack.name for pack in packs)
        hint = f"there are {known}" if known else "make one with `kvchat pack make`"
        raise PackNotFound(f"no pack is called {name!r}; {hint}")

    def refuse_taken(self, name: str) -> None:
        """Raise PackExists if a name is taken."""
        if any(pack.name == name for pack in self.all()):
            raise PackExists(
                f"there is a pack {name!r} already; --force replaces it, `kvchat pack rm` removes it"
            )

    def put(self, pack: Pack) -> None:
        """Write a pack, instead of one of the same name; durable when this returns."""
        others = [one for one in self.all() if one.name == pack.name and one.id != pack.id]
        self._write(pack)
        for one in others:
            self.remove(one)

    def remove(self, pack: Pack) -> None:
        with system_errors_as(StorageError, f"the packs in {self._directory} cannot be written"):
            self._files.remove(self._files.file(pack.id))

    def copy_to(self, encryptor: Encryptor | None) -> None:
        """Write every pack once more, encrypted with `encryptor`, or in the clear; see `forget_other`."""
        target = PackStore(self._directory, encryptor)
        for pack in self.all():
            target._write(pack)

    def _write(self, pack: Pack) -> None:
        with system_errors_as(StorageError, f"the packs in {self._directory} cannot be written"):
            self._files.write(self._files.file(pack.id), json.dumps({"v": _VERSION} | asdict(pack)).encode())

    def _read(self, file: Path) -> Pack:
        try:
            values = msgspec.json.decode(self._files.read(file))
            if values["v"] != _VERSION:
                raise ValueError("another version")
            return msgspec.convert(values, Pack)
        except OSError as error:
            raise StorageError(f"cannot read {file}: {error.strerror or error}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise StorageError(
                f"the pack in {file} is damaged; remove the file and make the pack again"
            ) from error


def new_pack_id() -> str:
    return secrets.token_hex(8)
