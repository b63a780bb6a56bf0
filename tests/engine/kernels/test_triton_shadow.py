"""The Triton kernels of a shadowed context are their references, and compile for GPUs without spills."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

if find_spec("triton") is None:
    pytest.skip("Triton is there on Linux only", allow_module_level=True)

from kvchat.engine.kernels.shadow_kv import triton as kernels
from kvchat.engine.kernels.shadow_kv.args import MOST_SLOTS, Change, Rotations
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


def test_more_slots_than_a_program_holds_are_refused() -> None:
    slots = torch.zeros(1, MOST_SLOTS + 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="1025 slots are more than a program holds: at most 1024"):
        kernels.exchange(slots, slots)


def with_gaps(tensor: Tensor) -> Tensor:
    """Return the same tensor as every other number of another one."""
    return torch.stack((tensor, tensor), dim=-1)[..., 0]


def restore(sides: Sequence[Tensor]) -> None:
    turns = Rotations(cosines=sides[4], sines=sides[5])
    kernels.restore_keys(sides[0], sides[1], Change(slots=sides[2], is_missing=sides[3]), turns, sides[6])


def load(sides: Sequence[Tensor]) -> None:
    kernels.load_chunks(sides[0], sides[1], Change(slots=sides[2], is_missing=sides[3]), sides[4])


SLOTS, MISSING, KEPT = torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3).bool(), torch.zeros(2, 3, 8, 16)
CALLS: dict[str, tuple[Callable[[Sequence[Tensor]], object], tuple[Tensor, ...]]] = {
    "scores": (
        lambda sides: kernels.chunk_scores(sides[0], sides[1], sides[2], 1.0),
        (torch.zeros(1, 2, 16), torch.zeros(5, 1, 16), torch.zeros(1, 5).bool()),
    ),
    "exchange": (lambda sides: kernels.exchange(sides[0], sides[1]), (SLOTS - 1, SLOTS)),
    "values": (load, (torch.zeros(5, 2, 8, 16), torch.arange(5), SLOTS, MISSING, KEPT)),
    "keys": (
        restore,
        (torch.zeros(5, 8, 4), torch.zeros(32, 4), SLOTS, MISSING, *[torch.zeros(40, 8)] * 2, KEPT),
    ),
}


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
