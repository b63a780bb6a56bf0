"""Figures and how they are printed."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter


class NothingHere(Exception):
    """This machine has nothing that a scenario could measure; the message says what it lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: the median of several rounds with the smallest and the largest."""

    name: str
    unit: str
    median: float
    low: float
    high: float
    note: str = ""

    @classmethod
    def of(cls, name: str, unit: str, values: Sequence[float], note: str = "") -> "Row":
        return cls(name=name, unit=unit, median=median(values), low=min(values), high=max(values), note=note)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def seconds(action: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start_s = perf_counter()
    action()
    return perf_counter() - start_s


def render(rows: Sequence[Row]) -> str:
    width = max(len(row.name) for row in rows)
    return "\n".join(f"  {row.name:<{width}}  {_figures(row)}  {row.note}".rstrip() for row in rows)


def _figures(row: Row) -> str:
    return f"{row.median:>10.4g} {row.unit:<9} [{row.low:.4g} .. {row.high:.4g}]"
