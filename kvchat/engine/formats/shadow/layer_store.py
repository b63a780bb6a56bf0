"""Storage of one layer's shadow for one sequence: compressed keys, landmarks, values and the working set.

Dimensions: H_kv heads, D and D_v sizes of a head, c tokens of a chunk, a chunks that are always seen.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from kvchat.engine.formats.shadow.compressed_keys import CompressedKeys
from kvchat.engine.formats.shadow.copy_on_write_rows import Budget, Rows
from kvchat.engine.formats.shadow.rotary import Rotary
from kvchat.engine.formats.shadow.settings import ShadowSettings
from kvchat.engine.formats.shadow.working_set import WorkingSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What may be held on the device and in host memory."""

    device: Budget
    host: Budget


@dataclass(slots=True, kw_only=True)
class LayerStore:
    """What is kept; sequences share it until one of them writes.

    Args:
        landmarks: [H_kv, D] of each compressed chunk.
        tail_keys, tail_values: exact, [H_kv, D] and [H_kv, D_v] of each token.
        always: chunks [H_kv, a] that every step sees.
        always_keys, always_values: of these, [c, D] and [c, D_v] of each, a head behind the other.
        values: in host memory, [c, D_v] of each head of each compressed chunk, a chunk behind the other; of
            no width where they are read elsewhere.
    """

    landmarks: Rows
    tail_keys: Rows
    tail_values: Rows
    always: Tensor
    always_keys: Rows
    always_values: Rows
    values: Rows
    compressed_keys: CompressedKeys
    working: WorkingSet

    @classmethod
    def empty_for(
        cls, settings: ShadowSettings, rotary: Rotary, keys: Tensor, values: Tensor, budgets: Budgets
    ) -> "LayerStore":
        """Return an empty stock for keys [n, H_kv, D] and values [n, H_kv, D_v] such as these.

        Raises:
            OutOfMemory: the device's budget does not hold the working set.
        """
        size, device = settings.chunk_size, budgets.device
        num_held = settings.num_chosen if settings.holds_chosen else 0
        working = [side.new_empty(side.shape[1], num_held, size, side.shape[2]) for side in (keys, values)]
        return cls(
            landmarks=Rows(keys.shape[1:], keys.dtype, device),
            tail_keys=Rows(keys.shape[1:], keys.dtype, device),
            tail_values=Rows(values.shape[1:], values.dtype, device),
            always=torch.empty(keys.shape[1], 0, dtype=torch.int64, device=keys.device),
            always_keys=Rows((size, keys.shape[2]), keys.dtype, device, page_rows=1),
            always_values=Rows((size, values.shape[2]), values.dtype, device, page_rows=1),
            values=Rows((size, 0 if settings.is_sourced else values.shape[2]), values.dtype, budgets.host),
            compressed_keys=CompressedKeys(
                settings, rotary, (keys.shape[1], keys.shape[2]), keys.dtype, device
            ),
            working=WorkingSet(working[0], working[1], device),
        )

    def fork(self) -> "LayerStore":
        """Return the same for another sequence.

        Raises:
            OutOfMemory: the device's budget does not hold a second working set.
        """
        working = self.working.fork()  # first: it may be refused, and nothing is shared yet
        kept = {part.name: getattr(self, part.name) for part in fields(self)}
        rows: dict[str, Any] = {name: part.fork() for name, part in kept.items() if isinstance(part, Rows)}
        return replace(self, **rows, compressed_keys=self.compressed_keys.fork(), working=working)

    def release(self) -> None:
        """Give all bytes back that no other sequence holds."""
        for part in fields(self):
            kept = getattr(self, part.name)
            if not isinstance(kept, Tensor):
                kept.release()

    def device_tensors(self) -> dict[str, list[Tensor]]:
        """Return all that lies on the device, by what it is for."""
        segments = self.compressed_keys.segments
        exact = (self.always_keys, self.always_values, self.tail_keys, self.tail_values)
        bases = [segment.directions for segment in segments if segment.directions]
        return {
            "keys": [page.data for segment in segments for rows in segment.parts for page in rows.pages],
            "bases": [page.data for basis in bases for page in basis.pages],
            "landmarks": [page.data for page in self.landmarks.pages],
            "exact": [page.data for rows in exact for page in rows.pages],
            "working set": [self.working.keys, self.working.values],
            "numbers": [self.always, self.working.slots],
        }

    def host_tensors(self) -> list[Tensor]:
        return [page.data for page in self.values.pages]
