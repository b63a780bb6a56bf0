"""Storage of one layer's shadow for one sequence: compressed keys, landmarks, and the working set.

Dimensions: H_kv heads, D and D_v sizes of a head, c tokens of a chunk, a chunks that are always seen.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from kvchat.engine.formats.shadow.compressed_keys import CompressedKeys
from kvchat.engine.formats.shadow.copy_on_write_rows import Held, Rows
from kvchat.engine.formats.shadow.rotary import Rotary
from kvchat.engine.formats.shadow.settings import CHUNK_SIZE, ShadowSettings
from kvchat.engine.formats.shadow.working_set import WorkingSet


@dataclass(slots=True, kw_only=True)
class LayerStore:
    """What is kept; sequences share it until one of them writes.

    Args:
        landmarks: [H_kv, D] of each compressed chunk.
        tail_keys, tail_values: exact, [H_kv, D] and [H_kv, D_v] of each token.
        always: chunks [H_kv, a] that every step sees.
        always_keys, always_values: of these, [c, D] and [c, D_v] of each, a head behind the other.
        working: without room where nothing of a step stays for the next.
    """

    landmarks: Rows
    tail_keys: Rows
    tail_values: Rows
    always: Tensor
    always_keys: Rows
    always_values: Rows
    compressed_keys: CompressedKeys
    working: WorkingSet

    @classmethod
    def empty_for(
        cls, settings: ShadowSettings, rotary: Rotary, keys: Tensor, values: Tensor, held: Held
    ) -> "LayerStore":
        """Return an empty stock for keys [n, H_kv, D] and values [n, H_kv, D_v] such as these."""
        num_heads, dim = keys.shape[1:]
        num_held = settings.num_chosen if settings.is_remote else 0
        working = [side.new_empty(num_heads, num_held, CHUNK_SIZE, side.shape[2]) for side in (keys, values)]
        return cls(
            landmarks=Rows(keys.shape[1:], keys.dtype, held),
            tail_keys=Rows(keys.shape[1:], keys.dtype, held),
            tail_values=Rows(values.shape[1:], values.dtype, held),
            always=torch.empty(num_heads, 0, dtype=torch.int64, device=keys.device),
            always_keys=Rows((CHUNK_SIZE, dim), keys.dtype, held, page_rows=1),
            always_values=Rows((CHUNK_SIZE, values.shape[2]), values.dtype, held, page_rows=1),
            compressed_keys=CompressedKeys(settings, rotary, (num_heads, dim), keys.dtype, held),
            working=WorkingSet(working[0], working[1], held),
        )

    def fork(self) -> "LayerStore":
        """Return the same for another sequence."""
        kept: dict[str, Any] = {part.name: getattr(self, part.name) for part in fields(self)}
        return replace(self, **{name: part.fork() for name, part in kept.items() if name != "always"})

    def release(self) -> None:
        """Give all bytes back that no other sequence holds."""
        for part in fields(self):
            kept = getattr(self, part.name)
            if not isinstance(kept, Tensor):
                kept.release()

    def device_tensors(self) -> dict[str, list[Tensor]]:
        """Return all that is kept, by what it is for."""
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
