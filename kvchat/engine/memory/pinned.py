"""Host memory that a device reads and writes by itself, in slabs that are made when they are first used.

Pinning takes the memory from the system at once, so a tier of many gigabytes would hold up the start by
seconds. A slab holds whole blocks, because no copy may cross from one pinned piece to the next. Torch rounds
what it pins up to a power of two, so slabs are nearly as large as one.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from mmap import mmap
from typing import Protocol, SupportsInt

import torch
from torch import Tensor

from kvchat.engine.memory.aligned_memory import mapped

SLAB_BYTES = 2**28
MOST_WASTED = 8
"""Less than one in so many bytes of a slab that is not divided further may be lost to rounding."""

log = logging.getLogger(__name__)


def pinned(num_bytes: int) -> Tensor:
    """Return pinned memory, or plain memory where the system gives none: copies then hold up their thread."""
    try:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        log.warning("host memory for the cache is not pinned, so moving blocks there is slower: %s", error)
        return torch.empty(num_bytes, dtype=torch.uint8)


class Registrar(Protocol):
    """The part of CUDA's runtime that pins memory where it lies; what is returned is 0, or an error."""

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> SupportsInt: ...

    def cudaHostUnregister(self, address: int) -> object: ...


class PinnedMap(mmap):
    """An anonymous map that is given back to the driver before it is given back to the system."""

    address = 0
    registrar: Registrar | None = None

    def __del__(self) -> None:
        if self.registrar is not None:
            self.registrar.cudaHostUnregister(self.address)


def pinned_map(num_bytes: int, registrar: Registrar | None = None) -> Tensor:
    """Return zeros, uint8, that a GPU reads and writes by itself. Nothing is rounded up: what is mapped is
    pinned where it lies. Where the driver refuses that it stays plain, and copies hold up their thread.

    Args:
        registrar: None for CUDA's own.

    Raises:
        OSError, ValueError, OverflowError: the memory is not to be had.

    Effect:
        Takes all of it from the system now.
    """
    run = mapped(num_bytes, PinnedMap)
    assert isinstance(run, PinnedMap)
    memory = torch.frombuffer(run, dtype=torch.uint8)
    registrar = registrar or torch.cuda.cudart()
    error = int(registrar.cudaHostRegister(memory.data_ptr(), num_bytes, 0))
    if error:
        log.warning("host memory for blocks is not pinned, so reading it is slower: CUDA error %d", error)
    else:
        run.address, run.registrar = memory.data_ptr(), registrar
    return memory


def slab_places(num_places: int, place_bytes: int) -> list[int]:
    """Return how many places each slab has. Pure.

    Whole slabs are as many places as fit into `SLAB_BYTES`; the rest is divided where that takes less memory.
    """
    per_slab = max(1, SLAB_BYTES // place_bytes)
    num_whole, num_left = divmod(num_places, per_slab)
    return [per_slab] * num_whole + (_divided(num_left, place_bytes) if num_left else [])


def pinned_bytes(num_bytes: int) -> int:
    """Return what torch takes from the system for so many pinned bytes. Pure."""
    return 1 << (num_bytes - 1).bit_length()


def _divided(num_places: int, place_bytes: int) -> list[int]:
    as_one = pinned_bytes(num_places * place_bytes)
    num_first = as_one // 2 // place_bytes
    if not num_first or (as_one - num_places * place_bytes) * MOST_WASTED < as_one:
        return [num_places]
    parts = [num_first, *_divided(num_places - num_first, place_bytes)]
    is_less = sum(pinned_bytes(part * place_bytes) for part in parts) < as_one
    return parts if is_less else [num_places]


class PinnedSlabs:
    """Places of one size."""

    def __init__(self, num_places: int, place_bytes: int, allocate: Callable[[int], Tensor] = pinned) -> None:
        self._place_bytes = place_bytes
        self._starts = list(accumulate(slab_places(num_places, place_bytes), initial=0))
        """The first place of each slab, and the number of all."""
        self._allocate = allocate
        self._slabs: dict[int, memoryview] = {}

    def view(self, place: int) -> memoryview:
        """Return the writable bytes of one place."""
        number = bisect_right(self._starts, place) - 1
        slab = self._slabs.get(number)
        if slab is None:
            num_places = self._starts[number + 1] - self._starts[number]
            slab = self._allocate(num_places * self._place_bytes).numpy().data
            self._slabs[number] = slab
        start = (place - self._starts[number]) * self._place_bytes
        return slab[start : start + self._place_bytes]
