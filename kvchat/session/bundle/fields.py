"""Readers for the fields of a record's header: each returns a value of its type or says what is wrong.

A bundle comes from anywhere, so every field is checked for its type and range before it is used.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from kvchat.errors import BundleError

MAX_COUNT = 2**53
"""The largest whole number that every JSON reader keeps exactly."""

_MAX_SECONDS = 253_402_300_799.0
"""The end of the year 9999: the last time that calendars here can show."""


class Fields:
    """The fields of one JSON object.

    Args:
        values: the object.
        place: what it describes, for messages.

    Raises:
        BundleError: from every method, where the field is missing or of another type or range.
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self._values = values
        self._place = place

    def text(self, name: str, max_len: int | None = None) -> str:
        value = self._get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        if max_len is not None and len(value) > max_len:
            raise self._wrong(name, f"text of at most {max_len} characters")
        # Half a surrogate pair is no text, though JSON can write one.
        return value.encode(errors="replace").decode()

    def flag(self, name: str) -> bool:
        value = self._get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def count(self, name: str, limit: int = MAX_COUNT, least: int = 0) -> int:
        """Return a whole number in [least, limit)."""
        value = self._get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < limit:
            raise self._wrong(name, f"a whole number from {least} to {limit - 1}")
        return value

    def count_or_none(self, name: str, limit: int) -> int | None:
        return None if self._get(name) is None else self.count(name, limit)

    def seconds(self, name: str) -> float:
        """Return a timestamp or a duration."""
        value = self._get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(name, "a number of seconds")
        if not isfinite(value) or not 0 <= value <= _MAX_SECONDS:
            raise self._wrong(name, "seconds of this age")
        return float(value)

    def seconds_or_none(self, name: str) -> float | None:
        return None if self._get(name) is None else self.seconds(name)

    def digest(self, name: str, num_bytes: int = 32) -> bytes:
        value = self._get(name)
        try:
            digest = bytes.fromhex(value) if isinstance(value, str) else b""
        except ValueError:
            digest = b""
        if len(digest) != num_bytes or value != digest.hex():
            raise self._wrong(name, f"{2 * num_bytes} hexadecimal digits")
        return digest

    def within(self, name: str) -> "Fields":
        return Fields(self.mapping(name), f"{self._place}, {name}")

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self._get(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "a JSON object")
        return value

    def objects(self, name: str, limit: int) -> list["Fields"]:
        return [
            Fields(value, f"{self._place}, {name} {number}")
            for number, value in enumerate(self.items(name, limit))
            if self._is_object(name, value)
        ]

    def items(self, name: str, limit: int) -> list[Any]:
        value = self._get(name)
        if not isinstance(value, list) or len(value) > limit:
            raise self._wrong(name, f"a list of at most {limit}")
        return value

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def refuse(self, reason: str) -> BundleError:
        """Return the error that says what is wrong here."""
        return BundleError(f"{self._place}: {reason}")

    def _is_object(self, name: str, value: object) -> bool:
        if not isinstance(value, dict):
            raise self._wrong(name, "a list of JSON objects")
        return True

    def _get(self, name: str) -> Any:
        if name not in self._values:
            raise BundleError(f"{self._place} has no field {name!r}")
        return self._values[name]

    def _wrong(self, name: str, wanted: str) -> BundleError:
        return BundleError(f"{self._place}: the field {name!r} must be {wanted}")
