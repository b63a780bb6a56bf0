"""The gauge in a process of its own: it loads the model once more, and nothing of it stays behind."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from kvchat.cli.gauge_figures import read_figures
from kvchat.config import KEYS, Settings
from kvchat.errors import EngineFailed
from kvchat.ui.host import Gauged


def gauged(settings: Settings, session_id: str, branch: str, cache_format: str) -> Gauged:
    """Measure what formats lose on a session; return words and figures.

    Args:
        cache_format: to be measured; empty: the usual ones.

    Raises:
        EngineFailed: with what the command said instead.
    """
    with TemporaryDirectory(prefix="kvchat-gauge-") as scratch:
        path = Path(scratch, "figures.json")
        words = gauge_text(settings, session_id, branch, cache_format, path)
        report, kept_agreement = read_figures(path)
    return Gauged(words=words, report=report, kept_agreement=kept_agreement)


def gauge_text(
    settings: Settings, session_id: str, branch: str, cache_format: str, figures: Path | None = None
) -> str:
    """Return what `kvchat cache gauge` says of a session.

    Args:
        cache_format: to be measured; empty: the usual ones.
        figures: file for all figures.

    Raises:
        EngineFailed: with what the command said instead.
    """
    words = ["cache", "gauge", session_id, "--branch", branch, "--quiet"]
    words += ["--data-dir", str(settings.paths.data_dir), "--cache-dir", str(settings.paths.cache_dir)]
    words += ["--cache-format", cache_format] if cache_format else []
    words += ["--figures", str(figures)] if figures is not None else []
    root = str(Path(__file__).parents[2])
    python_path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    environ = os.environ | engine_environ(settings) | {"PYTHONPATH": python_path}
    ended = subprocess.run(
        [sys.executable, "-m", "kvchat", *words],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [f"it ended with {ended.returncode}"]
        raise EngineFailed(lines[-1].removeprefix("kvchat: "))
    return ended.stdout.rstrip("\n")


def engine_environ(settings: Settings) -> dict[str, str]:
    """Return the variables that say the same of an engine as these settings, wherever those came from."""
    values = {
        name: getattr(settings.engine, name.removeprefix("engine.")) for name in KEYS if "engine." in name
    }
    values["model"] = settings.model
    return {KEYS[name].variable: "none" if value is None else str(value) for name, value in values.items()}
