"""A disk in memory that can be slow, full or broken."""

from collections.abc import Iterable, Sequence
from threading import Event

from kvchat.engine.api.ids import BlockKey, GroupId
from kvchat.engine.memory.disk.block_file import BlockHeader
from kvchat.engine.memory.disk.io import Buffer
from kvchat.engine.memory.disk.store import DiskStore
from tests.patience import PATIENCE_S


class FakeDisk(DiskStore):
    """Takes nothing while it is not `open`, and raises `refusal` if there is one."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.shortage = self.left_out = None
        self.contents: dict[BlockKey, bytes] = {}
        self.removed: list[BlockKey] = []
        self.refusal: Exception | None = None
        self.num_attempts = 0
        self.attempted = Event()
        self.open = Event()
        if is_open:
            self.open.set()

    @property
    def written(self) -> list[BlockKey]:
        return list(self.contents)

    def write(self, blocks: Iterable[tuple[BlockHeader, Buffer]], *, is_wanted: bool = False) -> int:
        ((header, payload),) = blocks
        self.num_attempts += 1
        self.attempted.set()
        assert self.open.wait(PATIENCE_S)
        if self.refusal is not None:
            raise self.refusal
        if header.key in self.contents:
            return 0
        self.contents[header.key] = bytes(payload)
        return 1

    def remove(self, key: BlockKey, group: GroupId) -> None:
        self.removed.append(key)

    def has_all(self, keys: Sequence[BlockKey], group: GroupId) -> list[bool]:
        return [key in self.contents for key in keys]
