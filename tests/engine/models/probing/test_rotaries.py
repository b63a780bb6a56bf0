"""Each layer's keys are turned back by the embedding that the model turned them with."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kvchat.engine.forward.model_route import choose_route
from kvchat.engine.models.hook import attach
from kvchat.engine.models.load import load_model
from kvchat.engine.models.probing.rotaries import layer_rotaries
from kvchat.errors import UnsupportedModel
from tests.engine.tiny_models import common_sizes, make_config, save_model

pytestmark = pytest.mark.cpu

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 256}
SIZES = common_sizes(4)
CONFIGS = {
    "llama": lambda: make_config("llama"),
    "yarn": lambda: make_config("llama", rope_parameters=YARN),
    "gemma3": lambda: make_config("gemma3", layer_types=["sliding_attention", "full_attention"] * 3),
    "glm, half of a head and neighbours": lambda: transformers.GlmConfig(**SIZES, head_dim=16),
    "smollm3, every fourth layer unturned": lambda: transformers.SmolLM3Config(
        **SIZES, no_rope_layer_interval=4
    ),
}


class Keys:
    """Notes the keys of a pass in which nothing is attended to."""

    def __init__(self) -> None:
        self.keys: dict[int, torch.Tensor] = {}

    def attend(self, layer: int, query: Any, key: Any, value: Any, call: Any) -> Any:
        self.keys[layer] = key
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])


@pytest.mark.parametrize("kind", CONFIGS)
def test_keys_of_other_positions_are_turned_back_to_those_that_all_positions_share(
    kind: str, tmp_path: Path
) -> None:
    loaded = load_model(save_model(CONFIGS[kind](), tmp_path), "float32", torch.device("cpu"))
    served = choose_route(loaded)
    layers = [layer for group in served.groups for layer in group.layers if group.spec.max_visible is None]
    rotaries = layer_rotaries(loaded.module, layers)
    assert sorted(rotaries) == sorted(layers)
    recorder, places = Keys(), torch.tensor([[5, 17, 300, 700]])
    attach(loaded.module, recorder)
    module: Any = loaded.module
    with torch.inference_mode():
        module(input_ids=torch.full((1, 4), 9), position_ids=places, use_cache=False)
    for layer in layers:
        back = rotaries[layer].unturned(recorder.keys[layer], places[0])
        torch.testing.assert_close(back, back[:1].expand_as(back), atol=2e-4, rtol=2e-3)


def test_positions_that_are_added_to_tokens_are_refused(tmp_path: Path) -> None:
    loaded = load_model(save_model(make_config("gpt2"), tmp_path), "float32", torch.device("cpu"))
    choose_route(loaded)
    with pytest.raises(UnsupportedModel, match=r"layer 0: .* turns its keys in a way that is unknown"):
        layer_rotaries(loaded.module, [0, 1])
