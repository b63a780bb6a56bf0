"""Reading and writing take several steps and several buffers; what comes short or fails is told."""

import os
from collections.abc import Sequence
from contextlib import suppress
from fcntl import F_GETFL, fcntl
from pathlib import Path

import pytest

from kvchat.engine.memory.disk.io import FIRST_STEPS, SystemFiles, read_all, write_all

pytestmark = pytest.mark.pure

DATA = bytes(index * 7 % 251 for index in range(200_000))


class HaltingFiles(SystemFiles):
    """Reads at most `most` bytes at a time, and fails at read number `fails_at`."""

    gives_descriptors = False

    def __init__(self, most: int, fails_at: int | None = None) -> None:
        self.most = most
        self.fails_at = fails_at
        self.num_reads = 0

    def read(self, descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
        if self.num_reads == self.fails_at:
            raise OSError(5, "bad sector")
        self.num_reads += 1
        return super().read(descriptor, [parts[0][: self.most]], offset)

    def write(self, descriptor: int, parts: Sequence[memoryview]) -> int:
        return super().write(descriptor, [parts[0][: self.most]])


def read(files: SystemFiles, path: Path, sizes: Sequence[int]) -> bytes:
    parts = [memoryview(bytearray(size)) for size in sizes]
    descriptor = files.open(path)
    try:
        read_all(files, descriptor, parts)
    finally:
        files.close(descriptor)
    return b"".join(parts)


def open_below(directory: Path) -> list[str]:
    """Return the files of a directory, and the directory itself, that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in found if path.startswith(str(directory.resolve()))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@pytest.mark.parametrize("files", [SystemFiles(), HaltingFiles(3001)])
@pytest.mark.parametrize(
    "sizes", [[200_000], [1, 199_999], [0, 7000, 0, 193_000], [FIRST_STEPS[0], 183_616], [40_000] * 5]
)
def test_every_part_is_written_and_read_where_it_belongs(
    sizes: list[int], files: SystemFiles, tmp_path: Path
) -> None:
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    parts = [DATA[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    descriptor = files.create(tmp_path / "written")
    write_all(files, descriptor, parts)
    files.close(descriptor)
    assert (tmp_path / "written").read_bytes() == DATA
    assert read(files, tmp_path / "written", sizes) == DATA


def test_a_file_that_ends_early_is_an_error(path: Path) -> None:
    with pytest.raises(OSError, match="ended early"):
        read(SystemFiles(), path, [200_001])


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_read_that_fails_in_any_step_is_told(at: int, path: Path) -> None:
    with pytest.raises(OSError, match="bad sector"):
        read(HaltingFiles(1 << 30, at), path, [200_000])


def test_reading_a_file_ahead_neither_changes_what_is_read_nor_fails(path: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for name in ("pipe", "missing", ".", "empty"):
        SystemFiles().read_ahead(tmp_path / name)
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for _ in range(3):
        SystemFiles().read_ahead(path)
        assert read(SystemFiles(), path, [7000, 193_000]) == DATA
    assert not open_below(tmp_path)


@pytest.mark.parametrize("size", [1 << 18, (1 << 18) - 1, (1 << 18) + 1, 3 * (1 << 18) + 4097])
@pytest.mark.parametrize("start", [0, 10])
def test_a_large_file_is_written_whole_wherever_writing_begins(size: int, start: int, tmp_path: Path) -> None:
    """Past the system's cache as far as whole pages go, and the rest as any file."""
    data = (DATA * (1 + size // len(DATA)))[:size]
    for length in (size, size // 2):  # the second is written from memory that has held the first
        files = SystemFiles()
        descriptor = files.create(tmp_path / "large")
        flags = fcntl(descriptor, F_GETFL)
        write_all(files, descriptor, [data[:start]])
        write_all(files, descriptor, [data[start:7000], data[7000:7001], b"", data[7001:length]])
        assert fcntl(descriptor, F_GETFL) == flags
        files.sync(descriptor)
        files.close(descriptor)
        assert (tmp_path / "large").read_bytes() == data[:length]
