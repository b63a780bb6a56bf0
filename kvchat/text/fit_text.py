"""Text made safe to draw, and fitted to a width in cells."""

from rich.cells import cell_len, set_cell_size

from kvchat.platform.printable_text import clean_text as clean_text
from kvchat.platform.printable_text import one_line as one_line

STEP = " › "
"""Stands between a session's title and the name of one of its branches."""
_SHORT_TITLE = 4
_SHORT_PATH = 10

UNTITLED = "untitled"


def fitted(text: str, width: int) -> str:
    """Return one line cut to `width` cells, with a mark where something is missing."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 1)).rstrip() + "…" if width > 0 else ""


def padded(text: str, width: int) -> str:
    """Return one line of exactly `width` cells; a character may be two cells wide."""
    return set_cell_size(fitted(text, width), width)


def path_padded(path: str, width: int) -> str:
    """Return `title › branch` in exactly `width` cells; the title gives way, down to its first letters."""
    title, step, last = path.rpartition(STEP)
    if not step or width < _SHORT_PATH:
        return padded(path, width)
    title_width = max(_SHORT_TITLE, width - cell_len(last) - cell_len(STEP))
    return padded(f"{fitted(title, title_width)}{STEP}{last}", width)
