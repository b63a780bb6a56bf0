"""Styled runs of text that cache displays are made of."""

from enum import StrEnum


class Look(StrEnum):
    """What a run of text is; a display gives each its colour."""

    LABEL = "label"
    VALUE = "value"
    FAINT = "faint"
    HEADING = "heading"
    OWN = "own"
    SHARED = "shared"
    KEPT = "kept"
    FREE = "free"
    DIFFERENT = "different"
    MOVED = "moved"


MARKS = {Look.SHARED: "▒", Look.OWN: "▓", Look.KEPT: "░", Look.FREE: "·"}

Run = tuple[str, Look]
Row = tuple[Run, ...]


def row_text(row: Row) -> str:
    return "".join(text for text, _ in row)
