"""Commands of kvchat in a process of their own: conversions and gauges, which load the model once more."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path

import msgspec

from kvchat.app.config import KEYS, Settings, value_of
from kvchat.app.interface_types import Gauged
from kvchat.engine.api.loss import GaugeReport
from kvchat.errors import EngineFailed
from kvchat.platform.private_files import system_errors_as
from kvchat.text.gauge import report_lines

_ENDLESS = ("divergence", "worst_divergence", "perplexity_ratio")


def ended(settings: Settings, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, on the sessions and blocks of these settings and with an engine like theirs.

    Raises:
        EngineFailed: no process can be started, or the command failed, with what it said last.
    """
    places = ("--data-dir", str(settings.paths.data_dir), "--cache-dir", str(settings.paths.cache_dir))
    root = str(Path(__file__).parents[3])
    python_path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    with system_errors_as(EngineFailed, "no process can be started for it"):
        done = subprocess.run(
            [sys.executable, "-m", "kvchat", *words, *places],
            env=os.environ | engine_environ(settings) | {"PYTHONPATH": python_path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise EngineFailed(lines[-1].removeprefix("kvchat: "))
    return done


def engine_environ(settings: Settings) -> dict[str, str]:
    """Return the variables that say the same of an engine as these settings, wherever those came from."""
    values = {name: value_of(settings, name) for name in KEYS if name.startswith("engine.")}
    values["model"] = settings.model
    return {KEYS[name].variable: "none" if value is None else str(value) for name, value in values.items()}


def convert_words(
    settings: Settings, session_id: str, cache_format: str, model: str, *, dry_run: bool
) -> str:
    """Convert a session's stored KV and return what the command said of it.

    Args:
        model: what the session's KV was computed with.
        dry_run: change nothing; the words say what it would save and lose. Only then is that measured.

    Raises:
        EngineFailed: with what the command said instead; the session is as it was.
    """
    words = ["sessions", "convert", session_id, cache_format, "-m", model]
    words += ["--dry-run"] if dry_run else ["--yes", "--no-gauge"]
    lines = ended(settings, words).stderr.strip().splitlines()
    return "\n".join(filter(None, map(_for_the_window, lines)))


def _for_the_window(line: str) -> str:
    """Return a line without what a command line alone can do or has not done."""
    return line.partition(": kvchat ")[0].removesuffix("nothing was changed").removesuffix("; ")


def gauged(settings: Settings, session_id: str, branch: str, cache_format: str) -> Gauged:
    """Measure what formats lose on a session; return words and figures.

    Args:
        cache_format: to be measured; empty: the usual ones.

    Raises:
        EngineFailed: with what the command said instead, or it said no figures.
    """
    words = ["cache", "gauge", session_id, "--branch", branch, "--quiet", "--json"]
    words += ["--cache-format", cache_format] if cache_format else []
    written = ended(settings, words).stdout
    try:
        report, kept_agreement = read_figures(written.strip().rpartition("\n")[2])
    except (ValueError, LookupError, TypeError) as error:
        raise EngineFailed(f"the figures of the gauge cannot be read: {error}; try again") from error
    told = "\n".join(report_lines(report, kept_agreement))
    return Gauged(words=told, report=report, kept_agreement=kept_agreement)


def read_figures(written: str) -> tuple[GaugeReport, float]:
    """Return a report that `figures_of` has as JSON, and the agreement that was to be kept."""
    values = json.loads(written)
    for one in (*values["formats"], *values["layers"]):
        # JSON has no number without end, and a null in its place.
        one["loss"] |= {name: inf for name in _ENDLESS if one["loss"][name] is None}
    return msgspec.convert(values, GaugeReport), values["keep"]
