"""Programs that run kernels under Triton's interpreter: what starts one, and what it begins with.

They are programs of their own: the interpreter is chosen when Triton is imported, and a kernel that reads out
of bounds ends the process.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any


def errors_of(program: str, names: Iterable[str]) -> dict[str, float]:
    """Return each case's error as a multiple of what is allowed, by a program of this package."""
    command = [sys.executable, "-m", f"tests.engine.kernels.{program}", *names]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return {line["case"]: line["error"] for line in lines}


def tell(names: Iterable[str], error_of: Callable[[str], float]) -> None:
    """Print what `errors_of` reads."""
    call_directly()
    for name in names:
        print(json.dumps({"case": name, "error": error_of(name)}), flush=True)


def call_directly() -> None:
    """Let kernels call functions without preparing Triton's language each time.

    The interpreter puts its own operations in place of the language's at every launch. It does so again at
    every call of a function, which takes several times as long as what most of them compute.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    # Triton's own functions see the language under another name, which launches leave out.
    interpreter._patch_lang(tl.max.fn)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
