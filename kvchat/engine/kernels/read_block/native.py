"""Read one block's file into the layers of a pool, and check all of it on the way, in one call.

What it does is defined by `read_file` and `DevicePool.write_block` in `engine/memory`, which do the same with
the whole block in between. No tensors, hence no torch.
"""

import ctypes
import os
import threading
from dataclasses import dataclass
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final

from kvchat.engine.kernels.native.library import Library, existing, fields

BUFFER_BYTES: Final = 256 << 10
"""What is read at one time: it stays in a core's own cache beside the bytes it is copied to."""
STRIPE_BYTES: Final = 64
MIN_BYTES: Final = 256
"""XXH3 is another function for inputs of up to 240 bytes, which no head is."""
_WHOLE, _ENDED_EARLY, _UNREADABLE, _OTHER_HEAD, _OTHER_BYTES = range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTargets:
    """Where a block's bytes belong in memory, first keys, then values.

    Args:
        starts: addresses of the first layer's.
        strides: bytes from one layer to the next.
        sizes: bytes of one layer and block.
    """

    starts: tuple[int, int]
    strides: tuple[int, int]
    sizes: tuple[int, int]
    num_layers: int

    @property
    def num_bytes(self) -> int:
        return self.num_layers * sum(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHead:
    """What a file begins with, zeros for the 32 digits of its checksum, which begin at `checksum_start`."""

    blank: bytes
    checksum_start: int


class HeadDiffers(ValueError):
    """The file is another block's."""


class BytesDiffer(ValueError):
    """The checksum disagrees with the bytes."""


class _Call(ctypes.Structure):
    """The fields of native.cpp's `Call`, in order."""

    _fields_ = [
        ("head", ctypes.c_char_p),
        ("buffer", ctypes.c_void_p),
        *fields(ctypes.c_int64 * 2, "starts strides sizes"),
        *fields(ctypes.c_int64, "num_layers buffer_bytes head_bytes checksum_start descriptor error"),
    ]


class _Buffer(threading.local):
    """Memory of each thread that it uses again."""

    def __init__(self) -> None:
        memory = mmap(-1, STRIPE_BYTES + BUFFER_BYTES, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        self._bytes = (ctypes.c_char * len(memory)).from_buffer(memory)
        self.address = ctypes.addressof(self._bytes)


_buffer = _Buffer()


def read_block(descriptor: int, head: FileHead, places: ReadTargets, native: Library | None = None) -> None:
    """Fill a block from its file and verify all of the file. The interpreter's lock is released meanwhile.

    Effect: after an error what `places` holds is worthless.

    Args:
        descriptor: of a file as long as head and places together.

    Raises:
        HeadDiffers, BytesDiffer: the file is not what it must be.
        OSError: it cannot be read, or ends early.
    """
    assert len(head.blank) >= MIN_BYTES
    call = _Call(
        head.blank,
        _buffer.address,
        places.starts,
        places.strides,
        places.sizes,
        places.num_layers,
        BUFFER_BYTES,
        len(head.blank),
        head.checksum_start,
        descriptor,
    )
    found = existing(native).function("read_block")(ctypes.byref(call))
    if found == _UNREADABLE:
        raise OSError(call.error, os.strerror(call.error))
    if found == _ENDED_EARLY:
        raise OSError(0, "it ended early")
    if found != _WHOLE:
        raise HeadDiffers if found == _OTHER_HEAD else BytesDiffer
