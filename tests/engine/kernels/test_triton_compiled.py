"""Every Triton kernel compiles for the GPUs it is meant for, without spills and within shared memory."""

from importlib.util import find_spec
from itertools import product

import pytest
import torch

from kvchat.engine.kernels.paged_attention import triton_launcher

if find_spec("triton") is None:
    pytest.skip("Triton is there on Linux only", allow_module_level=True)

from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.latent_attention import triton as latent
from kvchat.engine.kernels.latent_record import triton as record_triton
from kvchat.engine.kernels.merge_lse import triton as merge_triton
from kvchat.engine.kernels.move_blocks import triton as move_triton
from kvchat.engine.kernels.move_blocks.reference import BlockRegions
from kvchat.engine.kernels.paged_attention import triton as attention
from kvchat.engine.kernels.paged_attention.args import AttentionArgs
from kvchat.engine.kernels.rope_and_store import triton as rope_store_triton
from kvchat.engine.kernels.store_kv import triton as store_triton
from kvchat.engine.kernels.triton_support import Tiling
from tests.engine.kernels.compiled import (
    BYTES,
    COMPILES,
    SHARED_LIMITS,
    Compiled,
    assert_fits,
    compile_kernel,
)

pytestmark = COMPILES
all_types = pytest.mark.parametrize(
    "dtype", ["bf16", *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in ("fp16", "fp32"))]
)
RECORD = Fp8Record(512, 64)
PLAIN = AttentionArgs((), 1.0)
FULL = AttentionArgs((), 1.0, window=512, softcap=50.0)


def compile_attention(
    capability: int,
    dtype: str,
    shape: tuple[int, int],
    *,
    args: AttentionArgs = PLAIN,
    is_split: bool,
    tiling: Tiling | None = None,
    pools: str | None = None,
) -> Compiled:
    """Compile for `shape` = (query heads of a key-value head, head size).

    Args:
        pools: their type; None: that of queries.
    """
    group, dim = shape
    choose = attention.decode_tiling if is_split else attention.prefill_tiling
    tiling = tiling or choose(group, dim, BYTES[dtype])
    types = dict.fromkeys(("query", "sinks"), f"*{dtype}")
    types |= dict.fromkeys(("k_pool", "v_pool"), f"*{pools or dtype}")
    types |= dict.fromkeys(("out", "lse"), "*fp32" if is_split else f"*{dtype}")
    types |= dict.fromkeys(("counts", "tiles", "q_starts", "q_lens", "positions", "first_blocks"), "*i32")
    types |= {"tables": "*i32", "softmax_scale": "fp32", "softcap": "fp32"}
    constants = attention.constants(args, group, 64, (dim, dim), is_split)
    return compile_kernel(
        attention._attend, types, constants, capability=capability, **triton_launcher.options(tiling)
    )


@pytest.mark.parametrize("is_split", [True, False], ids=["decode", "prefill"])
@pytest.mark.parametrize("capability", SHARED_LIMITS)
def test_attention_of_the_usual_shape_fits(capability: int, is_split: bool) -> None:
    made = compile_attention(capability, "bf16", (4, 128), is_split=is_split)
    assert_fits(made, capability)


def test_queries_of_another_type_than_the_pools_are_multiplied_in_theirs() -> None:
    """Some models attend in float32 whatever they store."""
    assert_fits(compile_attention(90, "fp32", (4, 64), is_split=False, pools="bf16"), 90)


@pytest.mark.slow
@pytest.mark.parametrize("is_split", [True, False], ids=["decode", "prefill"])
@pytest.mark.parametrize("args", [PLAIN, FULL], ids=["plain", "window and soft cap"])
@pytest.mark.parametrize(("group", "dim"), [*product((1, 4, 8), (64, 128, 256)), (71, 64), (3, 96)])
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("capability", SHARED_LIMITS)
def test_attention_of_every_shape_fits(
    capability: int, dtype: str, group: int, dim: int, args: AttentionArgs, is_split: bool
) -> None:
    assert_fits(compile_attention(capability, dtype, (group, dim), args=args, is_split=is_split), capability)


def compile_latents(capability: int, num_heads: int, *, record: Fp8Record | None, dtype: str) -> Compiled:
    """Compile for DeepSeek's sizes; GPUs older than 8.9 read E4M3 by its bits."""
    by_bits = record is not None and capability < 89
    if record is None:
        tiles = latent.tiling(num_heads, BYTES[dtype])
        types = dict.fromkeys(("query", "pool", "pool_f32", "pool_bf16"), f"*{dtype}")
    else:
        tiles = latent.record_tiling(num_heads, BYTES[dtype], by_bits)
        pools = {"pool": "*i8" if by_bits else "*fp8e4nv", "pool_f32": "*fp32", "pool_bf16": "*bf16"}
        types = {"query": f"*{dtype}"} | pools
    types |= {"parts": "*fp32", "lse": "*fp32", "counts": "*i32", "softmax_scale": "fp32"}
    types |= dict.fromkeys(("tiles", "q_starts", "q_lens", "positions", "tables"), "*i32")
    constants = latent.constants(num_heads, 512, 64, 64) | latent.record_constants(record, by_bits)
    return compile_kernel(
        latent._attend,
        types,
        constants | {"BLOCK_M": tiles.block_m, "BLOCK_N": tiles.block_n},
        capability=capability,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )


@all_types
@pytest.mark.parametrize("num_heads", [16, 128])
@pytest.mark.parametrize("record", [None, RECORD], ids=["exact", "records"])
@pytest.mark.parametrize("capability", SHARED_LIMITS)
def test_latent_attention_of_deepseek_fits(
    capability: int, record: Fp8Record | None, num_heads: int, dtype: str
) -> None:
    assert_fits(compile_latents(capability, num_heads, record=record, dtype=dtype), capability)


@pytest.mark.parametrize(
    ("head_dim", "tiling", "what"),
    [
        (128, Tiling(block_m=128, block_n=64, num_warps=8, num_stages=2), "stack_bytes"),
        (256, Tiling(block_m=64, block_n=64, num_warps=8, num_stages=6), "shared_bytes"),
    ],
    ids=["registers", "shared memory"],
)
def test_a_tile_that_is_too_large_is_noticed(head_dim: int, tiling: Tiling, what: str) -> None:
    made = compile_attention(80, "bf16", (4, head_dim), is_split=False, tiling=tiling)
    assert getattr(made, what) > {"stack_bytes": 0, "shared_bytes": SHARED_LIMITS[80]}[what]
    with pytest.raises(AssertionError):
        assert_fits(made, 80)


@all_types
@pytest.mark.parametrize("capability", SHARED_LIMITS)
def test_the_small_kernels_fit(capability: int, dtype: str) -> None:
    types = dict.fromkeys(("key", "value", "k_pool", "v_pool"), f"*{dtype}") | {"slots": "*i64"}
    heads = {"NUM_HEADS": 8, "BLOCK_SIZE": 64, "DIM_K": 128, "DIM_V": 128}
    blocks = {"BLOCK_H": 8, "BLOCK_K": 128, "BLOCK_V": 128}
    store = compile_kernel(store_triton._store, types, heads | blocks, capability=capability)
    assert_fits(store, capability)

    names = ("query", "key", "value", "cosines", "sines", "out", "k_pool", "v_pool")
    types = dict.fromkeys(names, f"*{dtype}") | {"slots": "*i64"}
    constants = rope_store_triton.constants(64, 128, 128, 128)
    assert_fits(compile_kernel(rope_store_triton._turn, types, constants, capability=capability), capability)

    types = dict.fromkeys(("latents", "rope_keys"), f"*{dtype}")
    types |= {"pool": "*u8", "pool_f32": "*fp32", "pool_bf16": "*bf16", "slots": "*i64"}
    constants = record_triton.constants(RECORD)
    assert_fits(compile_kernel(record_triton._store, types, constants, capability=capability), capability)

    types = {"parts": "*fp32", "lse": "*fp32", "num_parts": "*i32", "out": f"*{dtype}"}
    for dim, most_parts in ((128, attention.MOST_PARTS), (512, latent.MOST_PARTS)):
        constants = {"DIM": dim, "BLOCK_D": dim, "BLOCK_S": most_parts}
        assert_fits(compile_kernel(merge_triton._merge, types, constants, capability=capability), capability)

    types = dict.fromkeys(("source", "target"), "*i32")
    types |= dict.fromkeys(("source_blocks", "target_blocks", "starts", "sizes", "places"), "*i64")
    for mode, size in product(("copy", "gather", "scatter"), (64 * 128 * 2, 20)):
        regions = BlockRegions(torch.empty(0, dtype=torch.uint8), (0,), (size,))
        constants = move_triton.constants(mode, regions)
        assert_fits(compile_kernel(move_triton._move, types, constants, capability=capability), capability)
