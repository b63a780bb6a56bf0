"""The native kernel that reads a block's file into a pool, at every level of instructions."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Thread

import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray

from kvchat.engine.kernels.native.library import Library
from kvchat.engine.kernels.read_block.native import (
    BUFFER_BYTES,
    BytesDiffer,
    FileHead,
    HeadDiffers,
    ReadTargets,
    read_block,
)
from tests.engine.kernels.native_library import all_levels

pytestmark = [pytest.mark.cpu, all_levels]

HEAD_BYTES, CHECKSUM_START, NUM_BLOCKS = 312, 40, 3
FIRST_READS = (16 << 10, 64 << 10)
SMALL = (5, 48, 96)


class Pool:
    """Memory [L, N, b] for keys and for values, and the file of one block of it."""

    def __init__(self, path: Path, shape: tuple[int, int, int], head_bytes: int = HEAD_BYTES) -> None:
        """Args:
        shape: layers, bytes of keys and of values of one layer and block.
        """
        random = Random(repr((shape, head_bytes)))
        num_layers, *self.sizes = shape
        self.num_layers, self.path = num_layers, path
        self.parts = [_memory(num_layers * NUM_BLOCKS * size) for size in self.sizes]
        self.payload = random.randbytes(num_layers * sum(self.sizes))
        blank = bytearray(random.randbytes(head_bytes))
        blank[CHECKSUM_START : CHECKSUM_START + 32] = b"0" * 32
        self.head = FileHead(blank=bytes(blank), checksum_start=CHECKSUM_START)
        blank[CHECKSUM_START : CHECKSUM_START + 32] = (
            xxhash.xxh3_128(bytes(blank) + self.payload).hexdigest().encode()
        )
        self.file = bytes(blank) + self.payload

    def places(self, block: int) -> ReadTargets:
        keys, values = (
            part.ctypes.data + block * size for part, size in zip(self.parts, self.sizes, strict=True)
        )
        strides = (NUM_BLOCKS * self.sizes[0], NUM_BLOCKS * self.sizes[1])
        return ReadTargets(
            starts=(keys, values),
            strides=strides,
            sizes=(self.sizes[0], self.sizes[1]),
            num_layers=self.num_layers,
        )

    def read(self, native: Library, data: bytes | None = None, block: int = 1) -> None:
        """Read the block's file, or one with other bytes."""
        self.path.write_bytes(self.file if data is None else data)
        with opened(self.path) as descriptor:
            read_block(descriptor, self.head, self.places(block), native)

    def blocks(self) -> list[bytes]:
        """Return all blocks as runs of bytes."""
        shaped = [
            part.reshape(self.num_layers, NUM_BLOCKS, size)
            for part, size in zip(self.parts, self.sizes, strict=True)
        ]
        return [
            b"".join(part[layer, block].tobytes() for layer in range(self.num_layers) for part in shaped)
            for block in range(NUM_BLOCKS)
        ]


def _memory(num_bytes: int) -> NDArray[np.uint8]:
    return np.full(num_bytes, 7, dtype=np.uint8)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "shape",
    [SMALL, (1, 1, 1), (3, 64, 0), (2, 4096, 4096), (7, 1000, 24), (32, 40960, 40960), (1, 200_001, 3)],
    ids=str,
)
def test_every_byte_comes_to_its_place_and_nothing_beside_it_changes(
    tmp_path: Path, library: Library, shape: tuple[int, int, int]
) -> None:
    pool = Pool(tmp_path / "block", shape)
    beside = bytes([7]) * len(pool.payload)
    pool.read(library)
    assert pool.blocks() == [beside, pool.payload, beside]


def test_the_checksum_is_that_of_the_xxhash_library_for_every_length(
    tmp_path: Path, library: Library
) -> None:
    """All lengths about a stripe, a block of the hash, each of the reads and a whole buffer."""
    edges = (HEAD_BYTES + 64, 1024, 2048, 8192, *FIRST_READS, FIRST_READS[1] + BUFFER_BYTES)
    for total in sorted(
        {edge + offset for edge in edges for offset in (-65, -64, -63, -1, 0, 1, 63, 64, 65)}
    ):
        size = total - HEAD_BYTES
        if size > 0:
            pool = Pool(tmp_path / "block", (1, size, 0))
            pool.read(library)
            assert pool.blocks()[1] == pool.payload, total


@pytest.mark.parametrize("head_bytes", [256, 16 << 10, (16 << 10) + 8, 200_000])
def test_a_head_of_any_length_is_compared_and_goes_nowhere(
    tmp_path: Path, library: Library, head_bytes: int
) -> None:
    pool = Pool(tmp_path / "block", SMALL, head_bytes)
    pool.read(library)
    assert pool.blocks()[1] == pool.payload
    with pytest.raises(HeadDiffers):
        pool.read(library, _flipped(pool.file, head_bytes - 1))


@pytest.mark.parametrize(("shape", "step"), [(SMALL, 1), ((4, 40_000, 30_000), 997)], ids=str)
def test_any_byte_that_is_another_is_found(
    tmp_path: Path, library: Library, shape: tuple[int, int, int], step: int
) -> None:
    pool = Pool(tmp_path / "block", shape)
    pool.path.write_bytes(pool.file)
    with opened(pool.path) as descriptor:
        for at in range(0, len(pool.file), step):
            os.pwrite(descriptor, bytes([pool.file[at] ^ 1]), at)
            is_checksum = CHECKSUM_START <= at < CHECKSUM_START + 32
            with pytest.raises(BytesDiffer if is_checksum or at >= HEAD_BYTES else HeadDiffers):
                read_block(descriptor, pool.head, pool.places(1), library)
            os.pwrite(descriptor, pool.file[at : at + 1], at)
        read_block(descriptor, pool.head, pool.places(1), library)
    assert pool.blocks()[1] == pool.payload


def test_a_file_that_ends_early_or_cannot_be_read_says_so(tmp_path: Path, library: Library) -> None:
    pool = Pool(tmp_path / "block", (4, 40_000, 30_000))
    for length in (0, 1, HEAD_BYTES, FIRST_READS[0], 100_000, len(pool.file) - 1):
        with pytest.raises(OSError, match="it ended early"):
            pool.read(library, pool.file[:length])
    with opened(tmp_path) as directory, pytest.raises(IsADirectoryError):
        read_block(directory, pool.head, pool.places(0), library)


def test_several_threads_read_at_once(tmp_path: Path, library: Library) -> None:
    pools = [Pool(tmp_path / str(number), (8, 9_000 + number, 8_000)) for number in range(4)]
    threads = [
        Thread(target=lambda pool=pool: [pool.read(library, block=n) for n in range(NUM_BLOCKS)])
        for pool in pools
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(pool.blocks() == [pool.payload] * NUM_BLOCKS for pool in pools)


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
