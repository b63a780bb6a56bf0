"""Text made safe to draw, and fitted to a width in cells."""

import re

from rich.cells import cell_len, set_cell_size

from kvchat.platform.printable_text import clean_text as clean_text
from kvchat.platform.printable_text import one_line as one_line

STEP = " › "
"""Stands between a session's title and the name of one of its branches."""
_SHORT_TITLE = 4
_SHORT_PATH = 10

UNTITLED = "untitled"

_EMOJI = "\u2190-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
# Joined emoji, tones of skin, the letters of a flag, and the mark for a form in black and white.
_WITHOUT_WIDTH = re.compile(f"\u200d(?:[{_EMOJI}]|$)|[\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f\ufe0e]")
_WIDENED = re.compile("(.?)\ufe0f\u20e3?")


def drawable(text: str) -> str:
    """Return `text` with a sequence of emoji as its first, in as many cells; a joiner of letters stays.

    Rich gives a sequence two cells. Many terminals draw its parts beside each other, or the first of them in
    one cell: the rest of the row would be drawn over what stands beside it.
    """
    return text if text.isascii() else _WIDENED.sub(_in_cells, _WITHOUT_WIDTH.sub("", text))


def _in_cells(found: re.Match[str]) -> str:
    """Return a character that is wide in colour as the narrow one, and a space behind it."""
    return found[1] + " " * (cell_len(found[0]) - cell_len(found[1]))


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
