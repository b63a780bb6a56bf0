"""GPU resources of shadows whose blocks lie in host memory: streams, and rotary embeddings as tables."""

import torch

from kvchat.engine.formats.shadow.copy_on_write_rows import Held
from kvchat.engine.formats.shadow.rotary import Rotary
from kvchat.engine.formats.shadow.settings import TABLE_STEP
from kvchat.engine.kernels.shadow_kv.args import Rotations
from kvchat.engine.kernels.stream_protocol import Streams


class GpuResources:
    """What all shadows of a device share.

    Args:
        streams: on which host memory is read beside computing.
        held: counts the bytes of tables.
    """

    def __init__(self, streams: Streams, held: Held) -> None:
        self.streams = streams
        self._held = held
        self._tables: dict[Rotary, Rotations] = {}

    def table(self, rotary: Rotary, num_positions: int, device: torch.device) -> Rotations:
        """Return cosines and sines of at least so many positions, for all layers that turn alike."""
        found = self._tables.get(rotary)
        if found is None or len(found.cosines) < num_positions:
            before = self.table_bytes
            found = rotary.turns(-(-num_positions // TABLE_STEP) * TABLE_STEP, device)
            self._tables[rotary] = found
            self._held.num_bytes += self.table_bytes - before
        return found

    @property
    def table_bytes(self) -> int:
        return sum(table.cosines.nbytes + table.sines.nbytes for table in self._tables.values())

    def clear(self) -> None:
        """Let go of all tables."""
        self._held.num_bytes -= self.table_bytes
        self._tables.clear()
