"""A command of kvchat in a process of its own: it loads the model once more, and leaves nothing behind."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kvchat.app.config import KEYS, Settings
from kvchat.errors import EngineFailed


def ended(settings: Settings, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, on the sessions and blocks of these settings and with an engine like theirs.

    Raises:
        EngineFailed: no process can be started, or the command failed, with what it said last.
    """
    places = ("--data-dir", str(settings.paths.data_dir), "--cache-dir", str(settings.paths.cache_dir))
    root = str(Path(__file__).parents[2])
    python_path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kvchat", *words, *places],
            env=os.environ | engine_environ(settings) | {"PYTHONPATH": python_path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise EngineFailed(f"no process can be started for it: {error.strerror or error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise EngineFailed(lines[-1].removeprefix("kvchat: "))
    return done


def engine_environ(settings: Settings) -> dict[str, str]:
    """Return the variables that say the same of an engine as these settings, wherever those came from."""
    values = {
        name: getattr(settings.engine, name.removeprefix("engine.")) for name in KEYS if "engine." in name
    }
    values["model"] = settings.model
    return {KEYS[name].variable: "none" if value is None else str(value) for name, value in values.items()}
