"""Attention over quantized blocks in Triton is its definition, and compiles for GPUs without spills."""

from importlib.util import find_spec
from itertools import product

import pytest
import torch

from kvchat.engine.kernels.paged_attention import triton_launcher

if find_spec("triton") is None:
    pytest.skip("Triton is there on Linux only", allow_module_level=True)

from kvchat.engine.kernels.paged_attention.args import AttentionArgs
from kvchat.engine.kernels.quantized_attention import fits
from kvchat.engine.kernels.quantized_attention import triton as kernels
from kvchat.engine.kernels.quantized_attention import triton_dequantize as packed
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool
from kvchat.engine.kernels.quantized_record import Code, QuantizedRecord
from kvchat.engine.kernels.triton_support import Tiling
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
PLAIN = AttentionArgs((), 1.0)
CAPPED = AttentionArgs((), 1.0, softcap=50.0)
UNALIGNED = (
    *(f"{side}_{part}" for side, part in product("kv", ("units", "scales", "minima", "factors"))),
    *("ks_n", "ks_h", "vs_n", "vs_h"),
)
"""Records are whole words of four bytes and no more: a layer's, and their parts, begin anywhere."""


def test_the_kernel_equals_its_definition_and_what_reads_other_blocks_does_not() -> None:
    assert_right("run_interpreted_quantized")


def compile_attention(
    capability: int,
    dtype: str,
    shape: tuple[int, int],
    codes: tuple[Code, Code],
    *,
    is_split: bool,
    args: AttentionArgs = PLAIN,
    tiling: Tiling | None = None,
) -> Compiled:
    """Compile for `shape` = (query heads of a key-value head, head size)."""
    group, dim = shape
    keys, values = (QuantizedRecord(code, 64, dim, by) for code, by in zip(codes, (True, False), strict=True))
    nothing = torch.empty(0, dtype=torch.uint8)
    choose = kernels.decode_tiling if is_split else kernels.prefill_tiling
    tiling = tiling or choose(group, dim, BYTES[dtype])
    types = dict.fromkeys(("query", "k_pool", "v_pool", "sinks"), f"*{dtype}")
    types |= dict.fromkeys(("out", "lse"), "*fp32" if is_split else f"*{dtype}")
    types |= dict.fromkeys(("counts", "tiles", "q_starts", "q_lens", "positions", "first_blocks"), "*i32")
    types |= {"tables": "*i32", "old_tables": "*i32", "softmax_scale": "fp32", "softcap": "fp32"}
    for side, record in (("k", keys), ("v", values)):
        types[f"{side}_units"] = "*i32" if packed.unit_bytes(record) == 4 else "*u8"
        types |= {f"{side}_scales": "*fp16", f"{side}_minima": "*fp16", f"{side}_factors": "*fp32"}
    constants = kernels.constants(args, group, QuantizedPool(nothing, nothing, keys, values), is_split)
    return compile_kernel(
        kernels._attend,
        types,
        constants,
        capability=capability,
        unaligned=UNALIGNED,
        **triton_launcher.options(tiling),
    )


@pytest.mark.parametrize(
    ("dtype", "shape", "codes", "is_split"),
    [
        pytest.param("bf16", (4, 128), (Code.INT8, Code.INT4), True, id="decode"),
        pytest.param("bf16", (4, 128), (Code.INT4, Code.FP8), False, id="prompts"),
        # Nothing multiplies float32 but threads, which held whole rows of a head in registers.
        pytest.param("fp32", (8, 256), (Code.INT2, Code.INT2), True, id="large heads in float32"),
    ],
)
@pytest.mark.parametrize("capability", SHARED_LIMITS)
def test_the_kernel_of_usual_shapes_fits(
    capability: int, dtype: str, shape: tuple[int, int], codes: tuple[Code, Code], is_split: bool
) -> None:
    assert_fits(compile_attention(capability, dtype, shape, codes, is_split=is_split), capability)


@pytest.mark.slow
@pytest.mark.parametrize("is_split", [True, False], ids=["decode", "prefill"])
@pytest.mark.parametrize(("group", "dim"), [(1, 128), (4, 64), (4, 128), (8, 256), (71, 64), (3, 96)])
@pytest.mark.parametrize("codes", [(code, code) for code in Code], ids=list(Code))
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("capability", SHARED_LIMITS)
def test_the_kernel_of_every_shape_fits(
    capability: int, dtype: str, codes: tuple[Code, Code], group: int, dim: int, is_split: bool
) -> None:
    assert fits(group, BYTES[dtype]) == (dtype != "fp32" or group < 71)
    if not fits(group, BYTES[dtype]):
        return  # torch computes it
    made = compile_attention(capability, dtype, (group, dim), codes, is_split=is_split, args=CAPPED)
    assert_fits(made, capability)
