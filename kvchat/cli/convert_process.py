"""`kvchat sessions convert` in a process of its own, which loads the model once more and leaves nothing."""

import os
import subprocess
import sys
from pathlib import Path

from kvchat.cli.gauge_process import engine_environ
from kvchat.config import Settings
from kvchat.errors import EngineFailed


def convert_words(
    settings: Settings, session_id: str, cache_format: str, model: str, *, dry_run: bool
) -> str:
    """Convert a session's stored KV and return what the command said of it.

    Args:
        model: what the session's KV was computed with.
        dry_run: change nothing; the words say what it would save and lose.

    Raises:
        EngineFailed: with what the command said instead; the session is as it was.
    """
    words = [
        "sessions",
        "convert",
        session_id,
        cache_format,
        "-m",
        model,
        "--dry-run" if dry_run else "--yes",
    ]
    words += ["--data-dir", str(settings.paths.data_dir), "--cache-dir", str(settings.paths.cache_dir)]
    root = str(Path(__file__).parents[2])
    python_path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "kvchat", *words],
            env=os.environ | engine_environ(settings) | {"PYTHONPATH": python_path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise EngineFailed(f"no process can be started for it: {error.strerror or error}") from error
    lines = ended.stderr.strip().splitlines()
    if ended.returncode:
        last = lines[-1] if lines else f"it ended with {ended.returncode}"
        raise EngineFailed(last.removeprefix("kvchat: "))
    return "\n".join(filter(None, map(_for_the_window, lines)))


def _for_the_window(line: str) -> str:
    """Return a line without what a command line alone can do or has not done."""
    return line.partition(": kvchat ")[0].removesuffix("nothing was changed").removesuffix("; ")
