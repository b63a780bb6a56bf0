"""Lines that are wider than a terminal, broken between words, since a terminal would break them inside."""

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

_LEAST_WIDTH = 20
LEAST_ROOM = 24
"""Cells that are worth beginning a line for."""
_LITTLE_INDENT = 4
_MOST_COLUMN = 100
GAP = "  "
"""Between two columns."""


def fold(line: str, width: int, indent: int) -> list[str]:
    """Return a line as lines of at most `width` cells. Spaces between words that stay beside each other stay.

    Args:
        indent: of all lines but the first, where that leaves room for some words; else a little.

    A word that is wider, such as a path, stays whole on a line of its own, so that it can be copied.
    """
    width = max(width, _LEAST_WIDTH)
    margin = _margin(width, indent)
    lines, current = [], ""
    for word in re.findall(r" *[^ ]+", line):
        if current.strip() and cell_len(current + word) > width:
            lines.append(current)
            current, word = margin, word.lstrip(" ")
        current += word
    return [*lines, current]


def beside(
    rows: Sequence[tuple[str, str]], width: int | None, indent: int, most: int = _MOST_COLUMN
) -> Iterator[str]:
    """Yield the lines of a table of two columns; nothing is cut.

    Args:
        rows: what stands in the first column, and in the second.
        width: of the terminal in cells; None: lines are as long as they are.
        indent: of what goes on below its line, and of a second column that finds no room beside the first.
        most: a first column that is wider moves the second one for no other row.

    The second column begins where most rows have it if they stand on one line each. One that is too long for
    that place ends at the right edge, where the first column leaves room.
    """
    sizes = [(cell_len(first) + len(GAP), cell_len(second)) for first, second in rows]
    column = _column(sizes, width, most)
    for (first, second), (first_width, second_width) in zip(rows, sizes, strict=True):
        start = max(first_width, column if width is None else min(column, width - second_width))
        if width is None or start + second_width <= width:
            yield first + " " * (start - first_width) + GAP + second
        else:
            yield from fold(first, width, indent)
            yield from fold(_margin(width, indent) + second, width, indent)


def _margin(width: int, indent: int) -> str:
    return " " * (indent if width - indent >= LEAST_ROOM else _LITTLE_INDENT)


def _column(sizes: Sequence[tuple[int, int]], width: int | None, most: int) -> int:
    """Return where the second column begins; of several places that are as good, the first one."""

    def num_fitting(start: int) -> int:
        fitting = (width is None or start + second <= width for first, second in sizes if first <= start)
        return sum(fitting)

    places = {first for first, _ in sizes if first <= most}
    return max(sorted(places), key=num_fitting, default=0)
