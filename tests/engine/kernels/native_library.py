"""The native kernels for tests: compiled once, where there is a compiler, and by level.

Levels of aarch64 run everywhere on Linux, on a processor that is emulated, where `ziglang` and `unicorn` are
installed. That takes minutes: `pytest tests/engine -m slow -k aarch64`.
"""

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from kvchat.engine.kernels.native.build import LEVELS, build, machine
from kvchat.engine.kernels.native.library import Library, libraries, library, why_not

if TYPE_CHECKING:
    from tests.engine.kernels.aarch64_program import Program

EMULATED = "aarch64-"
emulated_levels = [pytest.param(EMULATED + level, marks=pytest.mark.slow) for level in LEVELS["aarch64"]]
all_levels = pytest.mark.parametrize("level", [*LEVELS.get(machine(), {"none": ()}), *emulated_levels])


@cache
def compiled() -> str | None:
    """Compile what is not compiled yet; return why there is no library, None where there is one."""
    problem = build().problem
    library.cache_clear()
    return problem or why_not()


def native(level: str) -> Library:
    """Return the library at a level, or skip the test."""
    problem = compiled()
    if level.startswith(EMULATED):
        return emulated(level.removeprefix(EMULATED))
    known = {one.level: one for one in libraries()}
    if level not in known:
        pytest.skip(problem or f"this processor has no {level}")
    return known[level]


def emulated(level: str) -> Library:
    """Return the library at a level of aarch64 on an emulated processor, or skip the test."""
    # Callers of kernels ask for those of this processor first.
    if problem := why_not_emulated() or why_not():
        pytest.skip(problem)
    return _emulated()[level]


def why_not_emulated() -> str | None:
    """Return why nothing for aarch64 can be compiled and run here, None where it can."""
    missing = [name for name in ("ziglang", "unicorn") if find_spec(name) is None]
    if missing:
        return f"kernels for aarch64 are not tried: pip install {' '.join(missing)}"
    return None if sys.platform == "linux" else "an emulated processor shares memory with processes of Linux"


@cache
def aarch64_program() -> "Program":
    """Return the kernels for aarch64, compiled once."""
    from tests.engine.kernels.aarch64_program import link

    with TemporaryDirectory() as directory:
        return link(Path(directory))


@cache
def _emulated() -> dict[str, Library]:
    from tests.engine.kernels.emulated import NEW, OLD, Processor

    program = aarch64_program()
    in_turn = program.functions["run_in_turn"]
    return {
        level: Library(level, in_turn, Processor(program, kind))  # type: ignore[arg-type]
        for level, kind in (("neon", OLD), ("dotprod", NEW))
    }
