"""Bytes of a file changed behind the back of whoever wrote it."""

from pathlib import Path


def flipped(data: bytes, at: int, mask: int = 0x01) -> bytes:
    """Return the same bytes with bits of one of them flipped; places may be counted from the end."""
    at %= len(data)
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def flip(path: Path, at: int = -1, mask: int = 0x01) -> None:
    """Flip bits of one byte of a file, by default of its last."""
    path.write_bytes(flipped(path.read_bytes(), at, mask))
