"""A model's layers are seen for what they keep, and what cannot be served exactly is refused."""

from pathlib import Path

import pytest
import torch
import transformers

from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.sliding.spec import SlidingSpec
from kvchat.engine.formats.spec import CacheSpec
from kvchat.engine.forward.model_route import choose_route
from kvchat.engine.models.load import load_model
from kvchat.errors import UnsupportedModel
from tests.engine.conftest import TinyModels
from tests.engine.tiny_models import common_sizes, save_model

pytestmark = pytest.mark.cpu


def probe(model_dir: Path, dtype: str = "float32") -> dict[int, CacheSpec]:
    route = choose_route(load_model(model_dir, dtype, torch.device("cpu")))
    return {layer: group.spec for group in route.groups for layer in group.layers}


def test_full_and_sliding_layers_are_told_apart(tiny: TinyModels) -> None:
    specs = probe(tiny("qwen3"))
    full = FullSpec(num_kv_heads=2, head_dim_k=16, head_dim_v=16, dtype="F32")
    sliding = SlidingSpec(num_kv_heads=2, head_dim_k=16, head_dim_v=16, dtype="F32", window_len=40)
    assert [specs[layer] for layer in range(4)] == [sliding, full, sliding, full]


def test_heads_and_dtype_are_those_the_model_passes(tiny: TinyModels) -> None:
    assert probe(tiny("gpt2"))[0] == FullSpec(num_kv_heads=4, head_dim_k=16, head_dim_v=16, dtype="F32")
    assert {spec.dtype for spec in probe(tiny("llama"), "bfloat16").values()} == {"BF16"}


def test_what_is_not_served_exactly_is_refused_with_the_reason(tmp_path: Path) -> None:
    """BERT reads in both directions, and is among the causal models all the same."""
    sizes = {name: size for name, size in common_sizes(4).items() if name != "num_key_value_heads"}
    config = transformers.BertConfig(**sizes | {"num_hidden_layers": 2, "pad_token_id": 0})
    model_dir = save_model(config, tmp_path / "model")
    with pytest.raises(UnsupportedModel) as refusal:
        probe(model_dir)
    assert len(str(refusal.value)) > 30
