"""Which rows of a product of parameters run by default; all others are among the slow tests.

`@pytest.mark.covering(2)` on a test with many parameters keeps rows in which every pair of values that stand
together in any row still stands together in one, `covering(1)` rows in which every value occurs. With
`each="level"` this holds for each value of that parameter by itself, as where a machine may lack one.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import pytest

Row = tuple[int, ...]
"""What stands for the value of each parameter."""
Seen = tuple[tuple[int, int], ...]
"""Values that stand together: (number of the parameter, what stands for its value)."""


def leave_the_rest_to_slow_tests(items: Iterable[pytest.Item]) -> None:
    """Mark as slow what `covering` leaves out. What is asked for by name alone is left as it is."""
    tests: dict[tuple[pytest.Item | None, str], list[pytest.Function]] = {}
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if isinstance(item, pytest.Function) and "covering" in marks and "slow" not in marks:
            tests.setdefault((item.parent, item.originalname), []).append(item)
    for rows in tests.values():
        kept = set(covering([_row(item) for item in rows], _ways(rows[0]), _columns(rows[0])))
        for number, item in enumerate(rows):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


def covering(rows: Sequence[Row], ways: int, each: Sequence[int] = ()) -> list[int]:
    """Return numbers of few rows, in which any `ways` values that stand together in one of `rows` do so too.

    Args:
        each: numbers of columns for each of whose values this holds by itself.
    """
    left = {number: set(_seen(row, ways, each)) for number, row in enumerate(rows)}
    missing = set().union(*left.values())
    kept = []
    while missing:
        best = max(left, key=lambda number: len(left[number]))  # of those that bring as much, the first
        kept.append(best)
        found = left.pop(best)
        missing -= found
        for one in left.values():
            one -= found
    return sorted(kept)


def _seen(row: Row, ways: int, each: Sequence[int]) -> Iterator[Seen]:
    others = [column for column in range(len(row)) if column not in each]
    for some in combinations(others, min(ways, len(others))):
        yield tuple((column, row[column]) for column in (*each, *some))


def _row(item: pytest.Function) -> Row:
    """Values are told apart as objects, since not all can be compared."""
    return tuple(hash(tuple(id(item.callspec.params[name]) for name in names)) for names in _names(item))


def _names(item: pytest.Function) -> list[tuple[str, ...]]:
    """Return the names of parameters, those together that are given together."""
    given = [mark.args[0] for mark in item.iter_markers("parametrize")]
    together = [tuple(one.replace(",", " ").split()) if isinstance(one, str) else tuple(one) for one in given]
    known = {name for names in together for name in names}
    return [*together, *((name,) for name in item.callspec.params if name not in known)]


def _ways(item: pytest.Function) -> int:
    marker = item.get_closest_marker("covering")
    assert marker is not None
    return int(marker.args[0])


def _columns(item: pytest.Function) -> list[int]:
    marker = item.get_closest_marker("covering")
    assert marker is not None
    each = marker.kwargs.get("each")
    return [column for column, names in enumerate(_names(item)) if each in names]
