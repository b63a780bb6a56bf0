"""The library of native kernels, where it was built for this version and for processors like this one."""

import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvchat.engine.kernels.native.build import LEVELS, library_path, machine

Function = Callable[..., int]
NOT_BUILT = "they are not built; with a C++ compiler: python -m kvchat.engine.kernels.native.build"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Library:
    """Kernels for one level of instructions.

    Args:
        level: its name.
        parallel: address of the function with which torch's OpenMP runtime runs something on several threads;
            None: there is none, and kernels compute on one.
    """

    level: str
    parallel: int | None
    _loaded: ctypes.CDLL

    def function(self, name: str) -> Function:
        """Return a kernel; the interpreter's lock is released while it runs."""
        found: Function = getattr(self._loaded, f"{name}_{self.level}")
        return found


def fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Return fields of one type for a `ctypes.Structure`, from their names between spaces."""
    return [(name, kind) for name in names.split()]


@cache
def library() -> Library | None:
    """Return the library at this processor's best level; None: there is none, as `why_not` says."""
    found, problem = _open()
    if problem is not None:
        log.info("without native kernels: %s", problem)
    return found[-1] if found else None


def existing(level: Library | None) -> Library:
    """Return `level`, or for None that of `library`; callers have checked that there is one.

    Functions that call kernels take a level, too: tests try each, everybody else has the best.
    """
    found = level or library()
    assert found is not None
    return found


def libraries() -> list[Library]:
    """Return the library at every level that this processor knows, the best last."""
    return _open()[0]


def why_not() -> str | None:
    """Return why there is no library, None where there is one."""
    return _open()[1]


def _open() -> tuple[list[Library], str | None]:
    path = library_path()
    if not path.exists():
        return [], NOT_BUILT
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.kvchat_levels.restype = ctypes.c_char_p
        here = loaded.kvchat_levels().decode().split()
    except (OSError, AttributeError) as error:
        return [], f"they cannot be loaded: {error}"
    known = [level for level in LEVELS[machine()] if level in here]
    parallel = _parallel()
    # A compiler may have been too old for some of them.
    found = [Library(name, parallel, loaded) for name in known if hasattr(loaded, f"paged_attention_{name}")]
    return found, None if found else "this processor is older than those they are made for"


def _parallel() -> int | None:
    """Return where OpenMP's runtime takes work: the one that torch has loaded by the time anything runs."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError, TypeError):
        return None
