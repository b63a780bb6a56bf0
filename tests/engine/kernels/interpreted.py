"""Programs that run kernels under Triton's interpreter: what starts one, and what it begins with.

They are programs of their own: the interpreter is chosen when Triton is imported, and a kernel that reads out
of bounds ends the process.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

NEEDS_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is there on Linux only")
CONTROL = "control, "
"""Names of cases begin so in which something is computed wrongly on purpose, and must show."""


def assert_right(program: str, *names: str) -> None:
    """Run cases by a program of this package, and hold that none is further off than is allowed but controls.

    Args:
        names: of cases; none: the program's usual ones.
    """
    command = [sys.executable, "-m", f"tests.engine.kernels.{program}", *names]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    errors = {line["case"]: line["error"] for line in map(json.loads, run.stdout.splitlines())}
    assert names or any(case.startswith(CONTROL) for case in errors)
    assert {case: error for case, error in errors.items() if (error <= 1) == case.startswith(CONTROL)} == {}


def assert_tests_pass(*arguments: str) -> None:
    """Run tests of this repository by pytest, with the interpreter in place of a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-4000:]


def tell(names: Iterable[str], error_of: Callable[[str], float]) -> None:
    """Print each case's error as a multiple of what is allowed."""
    compute_directly()
    for name in names:
        print(json.dumps({"case": name, "error": error_of(name)}), flush=True)


def compute_directly() -> None:
    """Leave out what the interpreter does again at each operation, which takes longer than most compute.

    At every launch it puts its own operations in place of the language's. It does so again at every call of a
    function, lists all dtypes to find one's in numpy, and computes integers twice for an assertion that is
    made in debugging alone.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    # Triton's own functions see the language under another name, which launches leave out.
    interpreter._patch_lang(tl.max.fn)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
    options = interpreter.interpreter_builder.options
    assert not options.debug
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)
    number_dtype = cache(interpreter._get_np_dtype)

    def np_dtype(of: tl.dtype) -> Any:
        return number_dtype(tl.uint64 if isinstance(of.scalar, tl.pointer_type) else of.scalar)

    interpreter._get_np_dtype = np_dtype
    gc.freeze()  # hundreds of thousands of objects of what was imported
