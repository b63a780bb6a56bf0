"""Compiles Triton kernels for a GPU that is not there, and reads what the compiler made of them."""

import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

COMPILES = [
    pytest.mark.cpu,
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
"""Marks of modules that compile."""
WARP_SIZE = 32
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes of a number of Triton's types."""
SHARED_LIMITS = {80: 166_912, 90: 232_448, 100: 232_448}
"""Bytes of shared memory that one program may take, by compute capability (CUDA C++ Programming Guide)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Shared memory and stack in bytes; a stack means spilled registers."""

    shared_bytes: int
    stack_bytes: int
    num_registers: int


def compile_kernel(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, object],
    *,
    capability: int,
    unaligned: Collection[str] = (),
    **options: int,
) -> Compiled:
    """Compile a kernel for a compute capability.

    Args:
        types: type of each argument that is not an int; pointers begin with `*`. Ints are multiples of 16.
        constants: the compile-time arguments.
        unaligned: pointers and ints of which nothing is known.
        options: of a launch: further compile-time arguments, num_warps, num_stages, maxnreg.
    """
    names = kernel.arg_names
    constants = dict(constants) | {name: options.pop(name) for name in names if name in options}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    aligned = {
        (number,): [["tt.divisibility", 16]]
        for number, name in enumerate(names)
        if signature[name].startswith(("*", "i")) and name not in unaligned
    }
    source = ASTSource(kernel, signature, constants, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", capability, WARP_SIZE), options=options)
    registers, stack = _resources(made.asm["cubin"])
    return Compiled(shared_bytes=made.metadata.shared, stack_bytes=stack, num_registers=registers)


def assert_fits(made: Compiled, capability: int) -> None:
    """Hold that nothing spills, and that shared memory is large enough."""
    assert made.stack_bytes == 0, made
    assert made.shared_bytes <= SHARED_LIMITS[capability], made


def _resources(cubin: bytes) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        run = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", run.stdout)
    assert found, run.stdout
    return int(found[1]), int(found[2])
