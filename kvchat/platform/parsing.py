"""Parsing of values as people write them, in files, variables and flags: text, numbers, sizes, paths.

Every parser returns the value or raises ValueError with what it must be.
"""

import os
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from string import ascii_letters
from typing import Any

_MODIFIERS = {"ctrl", "alt", "shift", "meta", "super", "hyper"}
# fmt: off
_KEYS = {
    "escape", "enter", "tab", "space", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown",
    "up", "down", "left", "right", "slash", "backslash", "minus", "plus", "underscore", "at", "dollar_sign",
    "question_mark", "full_stop",
}
# fmt: on
"""Of those that are more than a character; others have Unicode's names, such as `left_square_bracket`."""
MOST_TOKENS = 2**40
"""Of a context that is planned: bytes of it are still counted exactly."""


def parse_size(value: object) -> int:
    """Return the number of bytes that `value` says: an integer, or text such as 512MiB, 2 GB or 1.5GiB.

    Raises:
        ValueError: it says none.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        amount, unit = float(value), ""
    elif isinstance(value, str):
        amount, unit = _split_unit(value)
    else:
        raise ValueError("must be a number of bytes, for example 2GiB")
    size = amount * _UNITS[unit.lower()]
    if not 0 < size < 2**63:
        raise ValueError("must be more than 0 bytes and less than 8 EiB")
    return int(size)


def _split_unit(written: str) -> tuple[float, str]:
    digits = written.strip().rstrip(ascii_letters)
    unit = written.strip()[len(digits) :]
    try:
        amount = float(digits)
    except ValueError:
        amount = -1.0
    if amount < 0 or unit.lower() not in _UNITS:
        raise ValueError(f"must be a size such as 2GiB or 512MiB, not {written!r}")
    return amount, unit


_UNITS = {"": 1, "b": 1} | {
    prefix + ending: base ** (power + 1)
    for power, prefix in enumerate("kmgt")
    for ending, base in (("", 1024), ("ib", 1024), ("b", 1000))
}


def text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    if not is_text(value):
        raise ValueError("must be text in UTF-8")
    return value


def some_text(value: object) -> str:
    if not text(value).strip():
        raise ValueError("must be said, and is empty")
    return text(value)


def is_text(written: str) -> bool:
    """Return whether all of it was UTF-8: other bytes of a command line or a variable are lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in written)


_WORDS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


def yes_or_no(value: object) -> bool:
    known = value if isinstance(value, bool) else _WORDS.get(str(value).lower())
    if known is None:
        raise ValueError("must be true or false")
    return known


_MOST_DIGITS = 40


def integer(value: object) -> int:
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
        if len(value) > _MOST_DIGITS:
            raise ValueError(f"must have at most {_MOST_DIGITS} digits")
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"must be a whole number, not {value!r}")
    return value


def number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a number")
    try:
        read = float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"must be a number, not {value!r}") from None
    if isnan(read):
        raise ValueError(f"must be a number, not {value!r}")
    return read


def positive(value: object) -> int:
    count = integer(value)
    if count < 1:
        raise ValueError("must be 1 or more")
    return count


def tokens(value: object) -> int:
    """Return a number of tokens: 4096, `4096`, `128k` (1,024 each) or `1m`."""
    if isinstance(value, str):
        written = value.strip().lower()
        factor = {"k": 2**10, "m": 2**20}.get(written[-1:], 1)
        count = positive(written[:-1] if factor > 1 else written) * factor
    else:
        count = positive(value)
    if count > MOST_TOKENS:
        raise ValueError(f"must be at most {MOST_TOKENS:,}")
    return count


def shared_key(written: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return a key that two names have, and both names; None: no two have the same.

    Args:
        written: what `keys` has read, by names.
    """
    owners: dict[str, str] = {}
    for name, its_keys in written.items():
        for key in its_keys.split(","):
            *modifiers, last = _parts(key)
            if owners.setdefault(one := "+".join([*sorted(modifiers), last]), name) != name:
                return one, owners[one], name
    return None


def _parts(key: str) -> list[str]:
    return key.strip().split("+")


def keys(value: object) -> str:
    """Return keys as a terminal names them, separated by commas: `f5`, `ctrl+k`, `shift+enter,ctrl+j`."""
    written = text(value)
    for key in written.split(","):
        *modifiers, name = _parts(key)
        if not (set(modifiers) <= _MODIFIERS and _is_key(name)):
            raise ValueError(f"must be keys such as f5 or ctrl+k, separated by commas, not {key.strip()!r}")
        if (len(name) == 1 or name == "space") and set(modifiers) <= {"shift"}:
            raise ValueError(f"cannot be {key.strip()!r}, which is typed into messages; add ctrl+ or alt+")
    return written


def _is_key(name: str) -> bool:
    if len(name) == 1 or name in _KEYS or re.fullmatch(r"f([1-9]|1\d|2[0-4])", name):
        return True
    try:
        return bool(unicodedata.lookup(name.replace("_", " ")))
    except KeyError:
        return False


def path(value: object) -> Path:
    written = os.fspath(value) if isinstance(value, Path) else value
    if not isinstance(written, str):
        raise ValueError("must be text")
    if not written:
        raise ValueError("must be a path, and is empty")
    try:
        return Path(written).expanduser().absolute()
    except RuntimeError as error:  # `~name` of nobody
        raise ValueError(f"must be a path; {written} is in nobody's home") from error
    except OSError as error:
        raise ValueError(f"must be a path from /; {written} is in a directory that is gone") from error


@dataclass(frozen=True, slots=True)
class OrNone:
    """Reads what `read` does, and lets the word `none` lift a limit."""

    read: Callable[[Any], object]

    def __call__(self, value: object) -> object:
        return None if value == "none" else self.read(value)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Reads one of a few words."""

    words: tuple[str, ...]

    def __call__(self, value: object) -> object:
        if value not in self.words:
            raise ValueError(f"must be one of {', '.join(self.words)}, not {value!r}")
        return value
