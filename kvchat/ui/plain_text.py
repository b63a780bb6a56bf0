"""Text made safe to draw, and cut to the room there is."""

from rich.cells import cell_len, set_cell_size

from kvchat.session.plain_text import clean_text as clean_text
from kvchat.session.plain_text import one_line as one_line


def fitted(text: str, width: int) -> str:
    """Return one line cut to `width` cells, with a mark where something is missing."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 1)).rstrip() + "…" if width > 0 else ""


def padded(text: str, width: int) -> str:
    """Return one line of exactly `width` cells; a character may be two cells wide."""
    return set_cell_size(fitted(text, width), width)
