"""Types of the fields of a bundle's headers, and the reading of a header as one of them.

A bundle comes from anywhere, so every field is checked for its type and range before it is used.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from kvchat.errors import BundleError

MAX_COUNT = 2**53
"""The largest whole number that every JSON reader keeps exactly."""

MAX_SECONDS = 253_402_300_799.0
"""The end of the year 9999: the last time that calendars here can show."""

Count = Annotated[int, Meta(ge=0, lt=MAX_COUNT)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
"""A timestamp or a duration."""
Name = Annotated[str, Meta(max_length=4096)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

T = TypeVar("T")


def read_header(kind: type[T], header: Mapping[str, Any], place: str) -> T:
    """Return a header's JSON object as a value of a type; fields that it does not know are left out.

    Args:
        place: what the header describes, for messages.

    Raises:
        BundleError: a field is missing or of another type or range.
    """
    try:
        return msgspec.convert(header, kind)
    except msgspec.ValidationError as error:
        raise BundleError(f"{place}: {error}") from error
