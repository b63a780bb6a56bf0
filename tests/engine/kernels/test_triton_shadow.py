"""The Triton kernels of a shadowed context are their references, and compile for GPUs without spills."""

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

if find_spec("triton") is None:
    pytest.skip("Triton is there on Linux only", allow_module_level=True)

from kvchat.engine.kernels import shadow_kv
from kvchat.engine.kernels.shadow_kv import reference
from kvchat.engine.kernels.shadow_kv import triton as kernels
from kvchat.engine.kernels.shadow_kv.args import MOST_SLOTS, Change
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


@pytest.mark.parametrize(("num_slots", "num_calls"), [(MOST_SLOTS, 1), (MOST_SLOTS + 1, 0)])
def test_more_slots_than_a_program_holds_are_exchanged_without_the_kernel(
    num_slots: int, num_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def exchange(held: Tensor, wanted: Tensor) -> Change:
        calls.append(held.shape[1])
        return reference.exchange(held, wanted)

    monkeypatch.setattr(shadow_kv, "takes_triton", lambda *_: True)
    monkeypatch.setattr(kernels, "exchange", exchange)
    held, wanted = torch.full((1, num_slots), -1), torch.arange(num_slots)[None]
    assert torch.equal(shadow_kv.exchange(held, wanted, num_slots).slots, wanted)
    assert calls == [num_slots] * num_calls


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
