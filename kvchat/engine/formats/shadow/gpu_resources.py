"""GPU resources of shadows whose blocks lie in host memory: streams, and rotary embeddings as tables."""

from dataclasses import dataclass

import torch

from kvchat.engine.formats.shadow.copy_on_write_rows import Budget
from kvchat.engine.formats.shadow.rotary import Rotary
from kvchat.engine.formats.shadow.settings import TABLE_STEP
from kvchat.engine.kernels.shadow_kv.args import Rotations
from kvchat.engine.kernels.stream_protocol import Streams


class RotationTables:
    """Cosines and sines of all positions, for all layers that turn alike.

    Args:
        budget: of the device, which has them.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._tables: dict[Rotary, Rotations] = {}

    def of(self, rotary: Rotary, num_positions: int, device: torch.device) -> Rotations:
        """Return a table of at least so many positions.

        Raises:
            OutOfMemory: the budget has no room; the shorter table stays.
        """
        found = self._tables.get(rotary)
        if found is None or len(found.cosines) < num_positions:
            made = rotary.turns(-(-num_positions // TABLE_STEP) * TABLE_STEP, device)
            self._budget.claim(_bytes(made))
            if found is not None:
                self._budget.give_back(_bytes(found))
            found = self._tables[rotary] = made
        return found

    def clear(self) -> None:
        for table in self._tables.values():
            self._budget.give_back(_bytes(table))
        self._tables.clear()

    @property
    def num_bytes(self) -> int:
        return sum(map(_bytes, self._tables.values()))


def _bytes(turns: Rotations) -> int:
    return turns.cosines.nbytes + turns.sines.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuResources:
    """Args:
    streams: on which host memory is read beside computing.
    turns: of the device that computes.
    """

    streams: Streams
    turns: RotationTables
