"""The Triton kernels of a shadowed context are their references, and compile for GPUs without spills."""

from importlib.util import find_spec

import pytest

if find_spec("triton") is None:
    pytest.skip("Triton is there on Linux only", allow_module_level=True)

from kvchat.engine.kernels.shadow_kv import triton as kernels
from kvchat.engine.kernels.shadow_kv.args import MOST_SLOTS
from tests.engine.kernels.compiled import (
    BYTES,
    COMPILES,
    SHARED_LIMITS,
    Compiled,
    assert_fits,
    compile_kernel,
)
from tests.engine.kernels.interpreted import assert_right

pytestmark = COMPILES


def test_a_kernel_equals_its_reference_and_what_reads_something_else_does_not() -> None:
    assert_right("run_interpreted_shadow")


def compile_scores(capability: int, dtype: str, group: int, dim: int) -> Compiled:
    types = dict.fromkeys(("query", "means"), f"*{dtype}") | {"raw": "*fp32", "softmax_scale": "fp32"}
    types["always"] = "*i1"
    constants = kernels.score_constants(group, dim, BYTES[dtype])
    how = kernels.options(BYTES[dtype])
    return compile_kernel(kernels._score, types, constants, capability=capability, **how)


def compile_keys(capability: int, dtype: str, dim: int, num_turned: int, *, are_neighbours: bool) -> Compiled:
    types = dict.fromkeys(("projections", "directions", "out"), f"*{dtype}")
    types |= {"slots": "*i64", "is_missing": "*i1", "cosines": "*fp32", "sines": "*fp32"}
    constants = kernels.restore_constants(8, dim, num_turned, are_neighbours)
    how = kernels.options(BYTES[dtype])
    return compile_kernel(kernels._restore, types, constants, capability=capability, **how)


@pytest.mark.parametrize("capability", SHARED_LIMITS)
def test_the_kernels_of_the_usual_shape_fit(capability: int) -> None:
    assert_fits(compile_scores(capability, "bf16", 4, 128), capability)
    assert_fits(compile_keys(capability, "bf16", 128, 128, are_neighbours=False), capability)
    types = {"raw": "*fp32", "sums": "*fp32", "scores": "*fp32"}
    assert_fits(compile_kernel(kernels._best, types, {"BLOCK_C": 64}, capability=capability), capability)
    types = dict.fromkeys(("held", "wanted", "slots", "missing"), "*i64") | {"is_missing": "*i1"}
    for block in (256, MOST_SLOTS):
        made = compile_kernel(kernels._exchange, types, {"BLOCK_K": block}, capability=capability)
        assert_fits(made, capability)
    types = {"pool": "*bf16", "out": "*bf16", "blocks": "*i64", "slots": "*i64", "is_missing": "*i1"}
    made = compile_kernel(kernels._load, types, kernels.load_constants(8, 128, 64), capability=capability)
    assert_fits(made, capability)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("capability", SHARED_LIMITS)
def test_the_kernels_of_every_shape_fit(capability: int, dim: int, dtype: str) -> None:
    for group in (1, 8, 71):
        assert_fits(compile_scores(capability, dtype, group, dim), capability)
    for num_turned, are_neighbours in ((dim, False), (dim // 2, False), (dim, True), (dim // 2, True)):
        made = compile_keys(capability, dtype, dim, num_turned, are_neighbours=are_neighbours)
        assert_fits(made, capability)
