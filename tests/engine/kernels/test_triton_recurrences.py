"""The Triton kernels of layers with a recurrent state are their references, and compile for GPUs."""

from importlib.util import find_spec
from itertools import product

import pytest

if find_spec("triton") is None:
    pytest.skip("Triton is there on Linux only", allow_module_level=True)

from kvchat.engine.kernels.causal_conv import triton as conv
from kvchat.engine.kernels.gated_delta import triton as delta
from kvchat.engine.kernels.selective_scan import triton as scan
from tests.engine.kernels.compiled import BYTES, COMPILES, SHARED_LIMITS, assert_fits, compile_kernel
from tests.engine.kernels.interpreted import assert_tests_pass

pytestmark = COMPILES


KERNELS = "tests/engine/kernels/test_recurrences.py"
ENGINE = (
    "tests/engine/test_recurrent_models.py::test_without_kernels_the_models_own_functions_compute_the_same"
)
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("tests", "chosen"),
    [
        pytest.param(KERNELS, "not slow", id="kernels"),
        pytest.param(KERNELS, "slow", id="more sizes and types", marks=slow),
        *(
            pytest.param(f"{ENGINE}[{name}]", "not slow", id=name, marks=slow)
            for name in ("Mamba2", "Qwen3_5")
        ),
    ],
)
def test_the_kernels_equal_their_references_however_tokens_are_cut(tests: str, chosen: str) -> None:
    assert_tests_pass("-m", chosen, tests)


@pytest.mark.parametrize("kernel", [delta._scan, scan._scan], ids=["gated delta", "selective scan"])
def test_one_code_computes_every_cut(kernel: object) -> None:
    """Another order of sums for another number of tokens would give other bits."""
    names = [one.name for one in kernel.params if not (one.is_constexpr or one.do_not_specialize)]
    assert names == ["states", "slot_stride"]


def expect_delta_fits(capability: int, dtype: str, dim: int, decays_each: bool) -> None:
    types = dict.fromkeys(("query", "key", "value", "beta", "out"), f"*{dtype}")
    types |= {"decay": "*fp32", "states": "*fp32", "reads": "*i64", "writes": "*i64"}
    constants = delta.constants(2, dim, dim, decays_each, True)
    expect_fits(delta._scan, types, constants, capability, num_warps=1)


def expect_scan_fits(
    capability: int, dtype: str, shape: tuple[int, int, int, int], decays_each: bool
) -> None:
    """Of (heads, channels of a head, groups, numbers of a channel's state)."""
    types = dict.fromkeys(("x", "dt", "b", "c"), f"*{dtype}") | {"reads": "*i64", "writes": "*i64"}
    types |= dict.fromkeys(("a", "skip", "states", "out"), "*fp32")
    expect_fits(scan._scan, types, scan.constants(*shape, decays_each, True), capability, num_warps=1)


def expect_conv_fits(capability: int, dtype: str, num_taps: int, num_kept: int) -> None:
    types = dict.fromkeys(("x", "weight", "bias", "past", "out"), f"*{dtype}")
    constants = conv.constants(8192, num_taps, num_kept) | {"HAS_BIAS": True, "IS_ACTIVATED": True}
    expect_fits(conv._convolve, types, constants, capability, num_warps=4)


def expect_fits(
    kernel: object, types: dict[str, str], constants: dict[str, object], capability: int, num_warps: int
) -> None:
    unaligned = [one.name for one in kernel.params if one.do_not_specialize]
    made = compile_kernel(
        kernel, types, constants, capability=capability, unaligned=unaligned, num_warps=num_warps
    )
    assert_fits(made, capability)


MAMBA, MAMBA2 = (8192, 1, 1, 16), (64, 64, 8, 128)


@pytest.mark.parametrize("capability", SHARED_LIMITS)
def test_the_kernels_of_the_usual_shape_fit(capability: int) -> None:
    expect_delta_fits(capability, "bf16", 128, False)
    expect_scan_fits(capability, "bf16", MAMBA, True)
    expect_scan_fits(capability, "bf16", MAMBA2, False)
    expect_conv_fits(capability, "bf16", 4, 4)


@slow
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("capability", SHARED_LIMITS)
def test_the_kernels_of_every_shape_fit(capability: int, dtype: str) -> None:
    for dim, decays_each in product((16, 64, 96, 128, 256), (False, True)):
        expect_delta_fits(capability, dtype, dim, decays_each)
    for shape, decays_each in product((MAMBA, MAMBA2, (128, 64, 1, 256), (24, 64, 1, 70)), (False, True)):
        expect_scan_fits(capability, dtype, shape, decays_each)
    for num_taps, num_kept in ((4, 4), (3, 3), (8, 8), (2, 1), (4, 0)):
        expect_conv_fits(capability, dtype, num_taps, num_kept)
