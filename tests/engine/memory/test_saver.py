"""Waiting for the disk comes to an end, however slowly the disk takes what is queued."""

from threading import Event

import pytest

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId
from kvchat.engine.cache.plan import Save
from kvchat.engine.memory.block_file import BlockHeader
from kvchat.engine.memory.block_writer import BlockWriter
from kvchat.engine.memory.files import Buffer
from kvchat.engine.memory.saver import Saver
from tests.engine.memory.chains import FULL, chain

pytestmark = pytest.mark.pure

DRAIN_S = 0.3
BLOCKS = chain(list(range(4 * 30)))


class SlowDisk:
    """Takes every block within the time of a drain, and far from all of them."""

    def __init__(self) -> None:
        self.num_written = 0
        self._never = Event()

    def write(self, header: BlockHeader, payload: Buffer) -> bool:
        self._never.wait(DRAIN_S / 4)
        self.num_written += 1
        return True

    def remove(self, key: BlockKey, group: GroupId) -> None:
        pass


class Pool:
    """Blocks of one byte."""

    def block_bytes(self, group: GroupId) -> int:
        return 1

    def read_block(self, group: GroupId, block: BlockId, num_tokens: int) -> bytes:
        return b"x"


def test_a_drain_ends_in_its_time_and_drops_what_a_slow_disk_has_not_taken_by_then() -> None:
    disk = SlowDisk()
    writer = BlockWriter(disk, max_bytes=1)
    saver = Saver(Pool(), disk, writer, lambda save: True)  # type: ignore[arg-type]
    saver.save_blocks(
        Save(
            group=FULL,
            block=BlockId(0),
            key=block.key,
            parent=block.header.parent,
            token_ids=block.header.token_ids,
        )
        for block in BLOCKS
    )
    saver.drain(DRAIN_S)
    num_written = disk.num_written
    assert num_written < len(BLOCKS) // 2
    assert saver.num_waiting == writer.queued_bytes == 0
    saver.close(DRAIN_S)
    assert disk.num_written == num_written
