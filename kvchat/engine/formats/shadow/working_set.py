"""The chosen chunks of a layer that lie on the device from one step to the next.

Dimensions: H_kv heads, k chunks that a step chooses, m that it chooses for now, c tokens of a chunk, D and
D_v sizes of a head.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kvchat.engine.formats.shadow.copy_on_write_rows import Held
from kvchat.engine.kernels.shadow_kv import exchange
from kvchat.engine.kernels.shadow_kv.args import Change
from kvchat.engine.kernels.stream_protocol import Stream, Streams

Fill = Callable[[Change, Tensor, Tensor], None]
"""A change, and keys [H_kv, m, c, D] and values [H_kv, m, c, D_v]: fills missing slots of them, or some."""

EMPTY = -1


class WorkingSet:
    """Keys and values of up to k chunks for each head; a chunk that stays does not move.

    Args:
        keys, values: [H_kv, k, c, D] and [H_kv, k, c, D_v] for what they hold, of any content.
    """

    def __init__(self, keys: Tensor, values: Tensor, held: Held) -> None:
        held.num_bytes += keys.nbytes + values.nbytes
        self._held = held
        self.keys = keys
        self.values = values
        self.slots = torch.full(keys.shape[:2], EMPTY, device=keys.device)

    def bring(self, wanted: Tensor, num_chunks: int, fills: tuple[Fill, Fill], streams: Streams) -> Tensor:
        """Hold the chunks `wanted` [H_kv, m], ascending, in the first m slots; the calling thread waits for
        nothing.

        Args:
            num_chunks: that there are.
            fills: what reads host memory, beside computing, and what computes; together they fill all slots.

        Returns:
            How many chunks were fetched, over all heads [], int64.
        """
        slots, keys, values = (side[:, : wanted.shape[1]] for side in (self.slots, self.keys, self.values))
        num_fetched, changes = wanted.new_zeros(()), list[Change]()

        def find() -> None:
            change = exchange(slots, wanted, num_chunks)
            slots.copy_(change.slots)
            torch.sum(change.is_missing, dim=(0, 1), out=num_fetched)
            changes.append(change)

        load, compute = fills
        streams.compute(find)
        # Behind all that was handed in: earlier steps have read what is written over.
        loaded = streams.beside(Stream.IN, lambda: load(changes[0], keys, values), [streams.mark()])
        streams.compute(lambda: compute(changes[0], keys, values))
        streams.join(loaded)
        return num_fetched

    def forget_from(self, chunk: int) -> None:
        """Hold no chunk from `chunk` on any more: its keys are fetched again when it is wanted."""
        self.slots.masked_fill_(self.slots >= chunk, EMPTY)

    def fork(self) -> "WorkingSet":
        """Return a copy for another sequence."""
        other = WorkingSet(self.keys.clone(), self.values.clone(), self._held)
        other.slots.copy_(self.slots)
        return other

    def release(self) -> None:
        self._held.num_bytes -= self.keys.nbytes + self.values.nbytes
