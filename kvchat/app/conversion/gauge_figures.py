"""JSON form of a gauge report, written and read back."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

from kvchat.engine.api.cache_format import EXACT
from kvchat.engine.api.loss import FormatLoss, GaugeReport, LayerLoss, Loss
from kvchat.engine.quality.frontier import recommended
from kvchat.errors import StorageError
from kvchat.text.gauge import finite


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
    values: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    formats, layers = (
        [one | {"loss": _loss_of(one["loss"])} for one in values[name]] for name in ("formats", "layers")
    )
    report = GaugeReport(
        model=values["model"],
        num_tokens=values["num_tokens"],
        num_replayed=values["num_replayed"],
        exact_bytes=values["exact_bytes"],
        exact_token_bytes=values["exact_token_bytes"],
        formats=tuple(FormatLoss(**one) for one in formats),
        layers=tuple(LayerLoss(**one) for one in layers),
    )
    return report, values["keep"]


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


def _loss_of(values: Mapping[str, Any]) -> Loss:
    """Return a loss; JSON has no number without end, and a null in its place."""
    endless = ("divergence", "worst_divergence", "perplexity_ratio")
    return Loss(**{**values, **{name: inf for name in endless if values[name] is None}})
