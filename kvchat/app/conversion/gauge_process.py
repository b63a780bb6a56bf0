"""The gauge in a process of its own: it loads the model once more, and nothing of it stays behind."""

from pathlib import Path
from tempfile import TemporaryDirectory

from kvchat.app.child_process import ended
from kvchat.app.config import Settings
from kvchat.app.conversion.gauge_figures import read_figures
from kvchat.app.host import Gauged
from kvchat.errors import EngineFailed


def gauged(settings: Settings, session_id: str, branch: str, cache_format: str) -> Gauged:
    """Measure what formats lose on a session; return words and figures.

    Args:
        cache_format: to be measured; empty: the usual ones.

    Raises:
        EngineFailed: with what the command said instead.
    """
    try:
        with TemporaryDirectory(prefix="kvchat-gauge-") as scratch:
            path = Path(scratch, "figures.json")
            words = gauge_text(settings, session_id, branch, cache_format, path)
            report, kept_agreement = read_figures(path)
    except (OSError, ValueError, KeyError) as error:
        raise EngineFailed(
            f"the figures of the gauge cannot be kept or read: {error}; see that the directory for temporary"
            " files can be written and has room, and try again"
        ) from error
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
    words += ["--cache-format", cache_format] if cache_format else []
    words += ["--figures", str(figures)] if figures is not None else []
    return ended(settings, words).stdout.rstrip("\n")
