"""Memory-mapped weights: copies them out of their files without holding them in memory twice."""

import ctypes
import mmap
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

_MAPS = Path("/proc/self/maps")
_PAGE = mmap.PAGESIZE
_DONT_NEED = 4  # Linux's MADV_DONTNEED; a page of a file is read again if it is touched again


def own_memory(tensors: Iterable[Tensor]) -> None:
    """Copy tensors out of their files, which are mapped: whoever writes over one, or cuts it short, would
    change them under the engine, or end it.

    Effect:
        What has been copied leaves memory at once, where the system says which files are mapped.
    """
    files = _mapped_files()
    for tensor in tensors:
        mapped = tensor.data
        tensor.data = mapped.clone()
        _let_go(mapped, files)


def _mapped_files() -> list[tuple[int, int]]:
    """Return the addresses [start, end) of mapped weight files; nothing where the system does not say."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return []
    spans = [line.split(maxsplit=1)[0].split("-") for line in lines if line.endswith(".safetensors")]
    return [(int(start, 16), int(end, 16)) for start, end in spans]


def _let_go(tensor: Tensor, files: Iterable[tuple[int, int]]) -> None:
    """Drop the pages that hold nothing but this tensor."""
    start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    if not any(first <= start and end <= last for first, last in files):
        return
    start, end = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
    if start < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONT_NEED)
