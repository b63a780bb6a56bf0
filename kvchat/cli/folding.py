"""Lines that are wider than a terminal, broken between words, since a terminal would break them inside."""

import re

from rich.cells import cell_len

_LEAST_WIDTH = 20
_LEAST_ROOM = 24
_LITTLE_INDENT = 4


def fold(line: str, width: int, indent: int) -> list[str]:
    """Return a line as lines of at most `width` cells. Spaces between words that stay beside each other stay.

    Args:
        indent: of all lines but the first, where that leaves room for some words; else a little.

    A word that is wider, such as a path, stays whole on a line of its own, so that it can be copied.
    """
    width = max(width, _LEAST_WIDTH)
    margin = " " * (indent if width - indent >= _LEAST_ROOM else _LITTLE_INDENT)
    lines, current = [], ""
    for word in re.findall(r" *[^ ]+", line):
        if current.strip() and cell_len(current + word) > width:
            lines.append(current)
            current, word = margin, word.lstrip(" ")
        current += word
    return [*lines, current]
