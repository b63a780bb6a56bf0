"""Host memory that a device reads and writes by itself, in slabs that are made when they are first used.

Pinning takes the memory from the system at once, so a tier of many gigabytes would hold up the start by
seconds. A slab holds whole blocks, because no copy may cross from one pinned piece to the next.
"""

import logging
from collections.abc import Callable

import torch
from torch import Tensor

SLAB_BYTES = 2**28
"""Torch rounds what it pins up to a power of two."""

log = logging.getLogger(__name__)


def pinned(num_bytes: int) -> Tensor:
    """Return pinned memory, or plain memory where the system gives none: copies then hold up their thread."""
    try:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        log.warning("host memory for the cache is not pinned, so moving blocks there is slower: %s", error)
        return torch.empty(num_bytes, dtype=torch.uint8)


class PinnedSlabs:
    """Places of one size."""

    def __init__(self, num_places: int, place_bytes: int, allocate: Callable[[int], Tensor] = pinned) -> None:
        self._num_places = num_places
        self._place_bytes = place_bytes
        self._per_slab = max(1, SLAB_BYTES // place_bytes)
        self._allocate = allocate
        self._slabs: dict[int, memoryview] = {}

    @property
    def num_bytes(self) -> int:
        return self._num_places * self._place_bytes

    def view(self, place: int) -> memoryview:
        """Return the writable bytes of one place."""
        number, within = divmod(place, self._per_slab)
        slab = self._slabs.get(number)
        if slab is None:
            num_places = min(self._per_slab, self._num_places - number * self._per_slab)
            slab = self._allocate(num_places * self._place_bytes).numpy().data
            self._slabs[number] = slab
        return slab[within * self._place_bytes : (within + 1) * self._place_bytes]

    def close(self) -> None:
        """Give the memory back; views must be gone."""
        self._slabs.clear()
