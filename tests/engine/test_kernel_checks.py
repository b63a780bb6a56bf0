"""In which type a GPU's kernels are tried: that of the weights, before anything relies on them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.spec import Group
from kvchat.engine.forward.decode_graphs import (
    BATCH_SIZES,
    MOST_GATHERED,
    DecodeGraphRunner,
    Limits,
    compute_anew,
)
from kvchat.engine.forward.kernel_sizes import sizes_in_config, sizes_in_groups
from kvchat.engine.kernels.attention_shapes import AttentionSizes, LatentSizes
from kvchat.engine.kernels.quantized_record import Code
from kvchat.engine.models.weights_setting import WeightSource
from kvchat.engine.startup import weights
from tests.engine.conftest import TinyModels

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("dtype", "tried"), [("auto", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16")]
)
def test_kernels_are_tried_in_the_type_that_the_weights_have(
    dtype: str, tried: str, tiny: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the trial's call is looked at: without a GPU there is none."""
    calls: set[tuple[torch.device, str]] = set()
    monkeypatch.setattr(weights, "try_gpu", lambda device, name, *_: calls.add((device, name)))
    cpu = torch.device("cpu")
    weights.load_candidate(WeightSource(model_dir=Path(tiny("llama"))), EngineConfig(dtype=dtype), cpu)
    assert calls == {(cpu, tried)}


HEADS = {"num_heads": 4, "num_kv_heads": 2, "head_dim_k": 16, "head_dim_v": 16}


@pytest.mark.parametrize("cache_format", ["exact", "k=int8,v=int4; layers 0-1=exact"])
def test_kernels_are_tried_in_the_models_own_sizes(
    cache_format: str, tiny: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the blocks of its check at load before that, then in those of its cache, exact and quantised."""
    calls: list[Mapping[str, Any]] = []
    monkeypatch.setattr(weights, "try_gpu", lambda device, name, trials, *_: calls.append(trials))
    config = EngineConfig(dtype="float32", cache_format=cache_format, block_size=32)
    weights.load_candidate(WeightSource(model_dir=Path(tiny("llama"))), config, torch.device("cpu"))
    before, after = ({sizes for one in trials.values() for sizes in one.args[1]} for trials in calls[1:])
    assert before == {AttentionSizes(**HEADS, block_size=4)}
    exact = AttentionSizes(**HEADS, block_size=32)
    quantized = AttentionSizes(**HEADS, block_size=32, codes=(Code.INT8, Code.INT4))
    assert after == ({exact} if cache_format == "exact" else {exact, quantized})


class Config:
    """What a config says, as attributes."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


DEEPSEEK = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"num_attention_heads": 4, "hidden_size": 64}, ((4, 4, 16),)),
        ({"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 80}, ((32, 8, 80),)),
        ({"num_attention_heads": [4, 8], "hidden_size": 64}, ()),
        ({"num_attention_heads": 5, "num_key_value_heads": 2, "head_dim": 80}, ()),
        ({"num_attention_heads": 4}, ()),
        ({}, ()),
    ],
)
def test_a_config_tells_sizes_or_nothing(
    fields: dict[str, object], wanted: tuple[tuple[int, int, int], ...]
) -> None:
    listed = [
        AttentionSizes(num_heads=heads, num_kv_heads=kv, head_dim_k=dim, head_dim_v=dim, block_size=4)
        for heads, kv, dim in wanted
    ]
    assert sizes_in_config(Config(**fields), 4) == tuple(listed)


def test_a_config_of_latents_tells_theirs() -> None:
    sizes = LatentSizes(num_heads=16, rank=512, rope_dim=64, head_dim=128, block_size=4)
    assert sizes_in_config(Config(num_attention_heads=16, **DEEPSEEK), 4) == (sizes,)
    assert sizes_in_config(Config(num_attention_heads=16, kv_lora_rank=512), 4) == ()


def test_layers_that_share_keys_among_no_whole_number_of_heads_are_tried_without_a_group() -> None:
    spec = FullSpec(num_kv_heads=3, head_dim_k=8, head_dim_v=12, dtype="float32")
    groups = [Group(id=GroupId(number), spec=spec, layers=(number,)) for number in range(2)]
    wanted = AttentionSizes(num_heads=3, num_kv_heads=3, head_dim_k=8, head_dim_v=12, block_size=32)
    assert sizes_in_groups(Config(num_attention_heads=[1, 2]), groups, 32) == (wanted,)


@pytest.mark.parametrize("reads_codes", [False, True])
def test_where_a_kernel_reads_codes_steps_are_recorded_whatever_their_numbers_would_take(
    reads_codes: bool,
) -> None:
    spec = FullSpec(num_kv_heads=1, head_dim_k=8, head_dim_v=8, dtype="float32")
    recent = Group(id=GroupId(0), spec=spec, layers=(0,))
    quantized = Group(id=GroupId(1), spec=spec, layers=(0,), source=GroupId(0))
    limits = Limits(block_size=64, context_len=MOST_GATHERED, num_slots={}, reads_codes=reads_codes)
    steps = DecodeGraphRunner(None, (recent, quantized), limits, compute_anew)  # type: ignore[arg-type]
    assert (len(steps._sizes) == 2 * len(BATCH_SIZES)) == reads_codes
    assert all(reads_codes or size.num_rows * size.context_len <= MOST_GATHERED for size in steps._sizes)
