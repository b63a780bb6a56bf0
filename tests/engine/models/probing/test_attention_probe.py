"""A model's layers are seen for what they keep, and what cannot be served exactly is refused.

The second half of the promise is checked as it is meant: a model is refused with a reason, or its answers
are those of transformers.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.sliding.spec import SlidingSpec
from kvchat.engine.formats.spec import CacheSpec
from kvchat.engine.forward.model_route import ModelPlan, choose_route
from kvchat.engine.models.load import load_model
from kvchat.errors import UnsupportedModel
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import answer, reference, save_model, token_ids

pytestmark = pytest.mark.cpu

COMMON = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def route(model_dir: Path, dtype: str = "float32") -> ModelPlan:
    return choose_route(load_model(model_dir, dtype, torch.device("cpu")))


def probe(model_dir: Path, dtype: str = "float32") -> dict[int, CacheSpec]:
    return {layer: group.spec for group in route(model_dir, dtype).groups for layer in group.layers}


def test_full_and_sliding_layers_are_told_apart(tiny: TinyModels) -> None:
    specs = probe(tiny("qwen3"))
    full = FullSpec(num_kv_heads=2, head_dim_k=16, head_dim_v=16, dtype="F32")
    sliding = SlidingSpec(num_kv_heads=2, head_dim_k=16, head_dim_v=16, dtype="F32", window_len=40)
    assert [specs[layer] for layer in range(4)] == [sliding, full, sliding, full]


def test_heads_and_dtype_are_those_the_model_passes(tiny: TinyModels) -> None:
    assert probe(tiny("gpt2"))[0] == FullSpec(num_kv_heads=4, head_dim_k=16, head_dim_v=16, dtype="F32")
    assert {spec.dtype for spec in probe(tiny("llama"), "bfloat16").values()} == {"BF16"}


def mistral() -> Any:
    return transformers.MistralConfig(**COMMON, sliding_window=24, head_dim=16)


def gpt_oss() -> Any:
    """Sinks, a window on every other layer, experts."""
    return transformers.GptOssConfig(
        **COMMON | {"intermediate_size": 64}, num_local_experts=4, head_dim=16, sliding_window=24
    )


def gemma2() -> Any:
    return transformers.Gemma2Config(
        **COMMON, head_dim=16, sliding_window=24, query_pre_attn_scalar=16, attn_logit_softcapping=5.0
    )


def stablelm() -> Any:
    """Its decoder layers swallow the arguments that are passed down."""
    return transformers.StableLmConfig(**COMMON)


def falcon() -> Any:
    return transformers.FalconConfig(
        vocab_size=512, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, eos_token_id=None
    )


def bloom() -> Any:
    return transformers.BloomConfig(vocab_size=512, hidden_size=64, n_layer=2, n_head=4, eos_token_id=None)


@pytest.mark.parametrize("make", [mistral, gpt_oss, gemma2, stablelm, falcon, bloom])
def test_other_architectures_are_exact_without_code_of_their_own(
    make: Any, tmp_path: Path, open_engine: OpenEngine
) -> None:
    model_dir = save_model(make(), tmp_path / "model")
    engine = open_engine(model_dir, max_batch_tokens=30)
    first = answer(engine, token_ids(50), 12)
    assert first.token_ids == reference(model_dir).answer(token_ids(50), 12)
    again = token_ids(50)[:37] + token_ids(20, seed=1)
    result = answer(engine, again, 12)
    assert result.usage.cached_tokens == 37
    assert result.token_ids == reference(model_dir).answer(again, 12)


def bert() -> Any:
    """Reads in both directions, and is among the causal models all the same."""
    changes = {"num_hidden_layers": 2, "pad_token_id": 0}
    return transformers.BertConfig(
        **{k: v for k, v in COMMON.items() if k != "num_key_value_heads"} | changes
    )


def test_what_is_not_served_exactly_is_refused_with_the_reason(tmp_path: Path) -> None:
    model_dir = save_model(bert(), tmp_path / "model")
    with pytest.raises(UnsupportedModel) as refusal:
        probe(model_dir)
    assert len(str(refusal.value)) > 30
