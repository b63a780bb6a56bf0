"""JSON form of a gauge report, written and read back."""

import json
from dataclasses import asdict
from math import inf
from pathlib import Path

import msgspec

from kvchat.engine.api.cache_format import EXACT
from kvchat.engine.api.loss import GaugeReport
from kvchat.engine.quality.frontier import recommended
from kvchat.errors import StorageError
from kvchat.text.gauge import finite

_ENDLESS = ("divergence", "worst_divergence", "perplexity_ratio")


def figures_of(report: GaugeReport, session_id: str, kept_agreement: float) -> object:
    """Return a report with what it recommends, as a value of JSON."""
    best = recommended(report.formats, kept_agreement, report.exact_bytes)
    advice = {"keep": kept_agreement, "recommended": best.cache_format if best else EXACT}
    return finite({"session": session_id} | asdict(report) | advice)


def read_figures(path: Path) -> tuple[GaugeReport, float]:
    """Return a report that was written as `figures_of` has it, and the agreement that was to be kept.

    Raises:
        OSError, ValueError, KeyError: the file cannot be read, or holds something else.
    """
    values = json.loads(path.read_text(encoding="utf-8"))
    for one in (*values["formats"], *values["layers"]):
        # JSON has no number without end, and a null in its place.
        one["loss"] |= {name: inf for name in _ENDLESS if one["loss"][name] is None}
    return msgspec.convert(values, GaugeReport), values["keep"]


def write_text(path: Path, text: str, option: str) -> None:
    """Write a file that was asked for with an option.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}; give another file with {option}"
        ) from error
