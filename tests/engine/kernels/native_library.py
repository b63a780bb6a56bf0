"""The native kernels for tests: compiled once, where there is a compiler, and by level."""

from functools import cache

import pytest

from kvchat.engine.kernels.native.build import LEVELS, build, machine
from kvchat.engine.kernels.native.library import Library, libraries, library, why_not

all_levels = pytest.mark.parametrize("level", LEVELS.get(machine(), {"none": ()}))


@cache
def compiled() -> str | None:
    """Compile what is not compiled yet; return why there is no library, None where there is one."""
    problem = build().problem
    library.cache_clear()
    return problem or why_not()


def native(level: str) -> Library:
    """Return the library at a level, or skip the test."""
    problem = compiled()
    known = {one.level: one for one in libraries()}
    if level not in known:
        pytest.skip(problem or f"this processor has no {level}")
    return known[level]
