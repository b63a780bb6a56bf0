"""Compile the native kernels: `python -m kvchat.engine.kernels.native.build`.

Needs a C++ compiler and nothing else; kvchat computes the same without, slower. Every source is compiled once
for each level of instructions that the compiler knows, and all of them make one library beside this file. Its
name holds a digest of everything it was made from, so a library never outlives a change of its sources.
"""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

from kvchat.engine.kernels.threads import usable_cores

NATIVE = Path(__file__).parent
KERNELS = NATIVE.parent
ROOT = KERNELS.parents[2]
"""Where `#include "kvchat/..."` is looked up."""
# What matters is unrolled and fused by hand: -O3 takes twice the time and gains nothing. Compilers warn of
# their own headers (-w).
FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-w",
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni")
LEVELS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "x86_64": {"avx2": _AVX2, "avxvnni": (*_AVX2, "-mavxvnni"), "avx512": (*_AVX2, *_AVX512)},
    "aarch64": {"neon": (), "dotprod": ("-march=armv8.2-a+dotprod",)},
}
"""Machine → levels of instructions that it may have, the best last, with the compiler's names for them."""
_COMPILERS = ("c++", "g++", "clang++")
_LONGEST_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What came of it: where the library lies, or why there is none.

    Args:
        path: the library; None: there is none.
        problem: what could not be compiled, and why; None: nothing.
    """

    path: Path | None
    problem: str | None = None


def sources() -> list[Path]:
    """Return every file that a library is made from, headers included."""
    return sorted([*KERNELS.glob("*/*.cpp"), *KERNELS.glob("*/*.h")])


def machine() -> str:
    """Return the kind of this machine's processor, whatever the system calls it."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


@cache
def library_path() -> Path:
    """Return where the library of these sources lies, or would lie."""
    digest = blake2b(repr((machine(), FLAGS, LEVELS)).encode(), digest_size=8)
    for path in sources():
        digest.update(path.relative_to(KERNELS).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return NATIVE / f"native-{digest.hexdigest()}.so"


def build() -> Build:
    """Compile what is not compiled yet.

    Effect: writes the library under a temporary name and renames it, and removes those of other sources.
    Waits for another process that compiles the same: an installation may, beside `make`.
    """
    path = library_path()
    if path.exists():
        return Build(path=path)
    compiler = find_compiler()
    if machine() not in LEVELS:
        return Build(path=None, problem=f"there are no native kernels for {machine()}")
    if compiler is None:
        return Build(path=None, problem="no C++ compiler was found (g++ or clang++)")
    problem = None
    try:
        with _alone(), TemporaryDirectory(dir=NATIVE, prefix=".build-") as scratch:
            if not path.exists():
                problem = _compile(compiler, Path(scratch), path)
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if not path.exists():
        return Build(path=None, problem=problem)
    for old in NATIVE.glob("native-*.so"):
        if old != path:
            old.unlink(missing_ok=True)
    return Build(path=path, problem=problem)


def find_compiler() -> str | None:
    """Return the compiler that CXX names, or the first of the usual ones."""
    wanted = os.environ.get("CXX")
    return shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, _COMPILERS)), None)


def _compile(compiler: str, scratch: Path, path: Path) -> str | None:
    """Compile every level and link those that succeeded; return why others did not."""
    with ThreadPoolExecutor(usable_cores()) as compilers:  # each takes up to a GiB
        commands = {target: [compiler, *command, "-o", target] for target, command in _commands(scratch)}
        problems = dict(zip(commands, compilers.map(_problem, commands.values()), strict=True))
    failed = {target.suffixes[-2] for target, problem in problems.items() if problem}
    good = [target for target in problems if target.suffixes[-2] not in failed]
    first = next(filter(None, problems.values()), None)
    if len({target.suffixes[-2] for target in good}) < 2:
        return first
    library = scratch / path.name
    problem = _problem([compiler, "-shared", *good, "-o", library])
    if problem is None:
        library.replace(path)
    return problem or first


def _commands(scratch: Path) -> Iterator[tuple[Path, list[str | Path]]]:
    """Yield objects to be made, named NAME.LEVEL.o, and how."""
    for source in sources():
        if source.suffix != ".cpp":
            continue
        levels = {"any": ()} if source.parent == NATIVE else LEVELS[machine()]
        for level, features in levels.items():
            target = scratch / f"{source.parent.name}.{level}.o"
            yield target, ["-c", *FLAGS, *features, f"-DLEVEL={level}", f"-I{ROOT}", source]


@contextmanager
def _alone() -> Iterator[None]:
    """Hold a lock on the directory of the libraries."""
    directory = os.open(NATIVE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # there are file systems without; then both compile
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _problem(command: "list[str | Path]") -> str | None:
    """Run a compiler; return what it complains of first if it failed."""
    process = subprocess.run(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=_LONGEST_S, check=False
    )
    if process.returncode == 0:
        return None
    told = process.stderr
    errors = [line for line in told.splitlines() if "error" in line] or told.splitlines()
    return errors[0] if errors else f"the compiler ended with {process.returncode}"


def main() -> int:
    """Build, and say what there is; an exit code of 1: nothing."""
    made = build()
    if made.problem is not None:
        print(f"native kernels: {made.problem}", file=sys.stderr)
    if made.path is None:
        print("kvchat computes with plain torch", file=sys.stderr)
    return 0 if made.path is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())
