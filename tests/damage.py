"""Bytes of a file changed behind the back of whoever wrote it, and the start that mends it."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kvchat.errors import KvchatError

T = TypeVar("T")


def flipped(data: bytes, at: int, mask: int = 0x01) -> bytes:
    """Return the same bytes with bits of one of them flipped; places may be counted from the end."""
    at %= len(data)
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def flip(path: Path, at: int = -1, mask: int = 0x01) -> None:
    """Flip bits of one byte of a file, by default of its last."""
    path.write_bytes(flipped(path.read_bytes(), at, mask))


def after_trouble(action: Callable[[], T]) -> T:
    """Return what an action gives, if needs be after the one new start that the error asks for."""
    try:
        return action()
    except KvchatError:
        return action()
