"""What compiling costs before a first word: on a GPU kernels and layers are compiled, and steps recorded."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory

from benchmarks.table import Row

_COMPILERS = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
_CHOICES = "compiled-layers"


def has_gpu() -> bool:
    """Ask torch in a process of its own: what this one ever loads would count for all that it starts."""
    command = [sys.executable, "-c", "import torch, sys; sys.exit(not torch.cuda.is_available())"]
    return subprocess.run(command, check=False).returncode == 0


def compile_rows(first_word_s: Callable[[Mapping[str, str]], float], home: Path, rounds: int) -> list[Row]:
    """Return what a first word takes with nothing compiled, and once it is.

    Args:
        first_word_s: asks in a new process with these variables, and returns the seconds by the clock.
        home: where a question was asked before; what it found out beside compiling is known in each round.
    """
    before, after = [], []
    for _ in range(rounds):
        with TemporaryDirectory() as directory:
            place = Path(directory)
            copytree(home, place / "home", ignore=ignore_patterns(_CHOICES, "*.sock"))
            variables = {name: str(place / name) for name in _COMPILERS}
            variables["KVCHAT_HOME"] = str(place / "home")
            before.append(first_word_s(variables))
            after.append(first_word_s(variables))
    return [
        Row.of("360 M: first word, nothing compiled", "s", before, "by the clock"),
        Row.of("360 M: first word, all compiled", "s", after, "by the clock"),
        Row.of("  compiling kernels and recording steps", "s", _differences(before, after), "once"),
    ]


def nothing_compiled() -> list[Row]:
    """Return what stands there where there is no GPU."""
    return [Row.of("compiling kernels and recording steps", "s", [0.0], "none here: no GPU")]


def _differences(before: list[float], after: list[float]) -> list[float]:
    return [first - second for first, second in zip(before, after, strict=True)]
