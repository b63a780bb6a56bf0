"""A model's layers are seen for what they keep, and what cannot be served exactly is refused.

The second half of the promise is checked as it is meant: a model is refused with a reason, or its answers
are those of transformers.
"""

from pathlib import Path

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
from tests.engine.tiny_models import answer, common_sizes, reference, save_model, token_ids

pytestmark = pytest.mark.cpu

COMMON = common_sizes(4)


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


BLOOM = {"vocab_size": 512, "hidden_size": 64, "n_layer": 2, "n_head": 4, "eos_token_id": None}
CONFIGS = {
    "gpt_oss": transformers.GptOssConfig(  # sinks, a window on every other layer, experts
        **COMMON | {"intermediate_size": 64}, num_local_experts=4, head_dim=16, sliding_window=24
    ),
    "stablelm": transformers.StableLmConfig(**COMMON),  # layers swallow arguments that are passed down
    "bloom": transformers.BloomConfig(**BLOOM),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_other_architectures_are_exact_without_code_of_their_own(
    kind: str, tmp_path: Path, open_engine: OpenEngine
) -> None:
    model_dir = save_model(CONFIGS[kind], tmp_path / "model")
    engine = open_engine(model_dir, max_batch_tokens=30)
    first = answer(engine, token_ids(50), 12)
    assert first.token_ids == reference(model_dir).answer(token_ids(50), 12)
    again = token_ids(50)[:37] + token_ids(20, seed=1)
    result = answer(engine, again, 12)
    assert result.usage.cached_tokens == 37
    assert result.token_ids == reference(model_dir).answer(again, 12)


def test_what_is_not_served_exactly_is_refused_with_the_reason(tmp_path: Path) -> None:
    """BERT reads in both directions, and is among the causal models all the same."""
    sizes = {name: size for name, size in COMMON.items() if name != "num_key_value_heads"}
    config = transformers.BertConfig(**sizes | {"num_hidden_layers": 2, "pad_token_id": 0})
    model_dir = save_model(config, tmp_path / "model")
    with pytest.raises(UnsupportedModel) as refusal:
        probe(model_dir)
    assert len(str(refusal.value)) > 30
