"""Keys are turned as real models turn them, and back, or refused: the model's own embedding says how."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    GlmConfig,
    LlamaConfig,
    PhiConfig,
    PretrainedConfig,
    Qwen3Config,
)
from transformers.cache_utils import DynamicCache

from kvchat.engine.formats.shadow.rotary import HALVES, NEIGHBOURS, Rotary
from kvchat.errors import UnsupportedModel
from tests.engine.formats.shadow.contexts import randn, turn

pytestmark = pytest.mark.cpu

SIZES = {
    "vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 8.0}
MODELS = {
    "scaled as Llama 3.1": (LlamaConfig(**SIZES, rope_parameters=LLAMA3), HALVES),
    "scaled as YaRN": (LlamaConfig(**SIZES, rope_parameters=YARN), HALVES),
    "partial": (
        PhiConfig(
            **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
        ),
        HALVES,
    ),
    "partial and interleaved": (GlmConfig(**SIZES, head_dim=16), NEIGHBOURS),
    "interleaved": (CohereConfig(**SIZES), NEIGHBOURS),
    "normed keys, a head size of its own": (Qwen3Config(**SIZES, head_dim=24), HALVES),
}


def keys_of(config: PretrainedConfig, num_tokens: int = 30) -> tuple[Any, Tensor, Tensor]:
    """Return a random model with a layer's keys before and after rotation [n, H_kv, D]."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    attention = model.model.layers[0].self_attn
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, inputs: Any, out: Tensor) -> None:
            kept[name] = out[0].reshape(num_tokens, 2, -1)

        return hook

    attention.k_proj.register_forward_hook(keep("projected"))
    if hasattr(attention, "k_norm"):
        attention.k_norm.register_forward_hook(keep("projected"))
    cache = DynamicCache(config=config)
    with torch.no_grad():
        model(torch.randint(3, 40, (1, num_tokens)), past_key_values=cache, use_cache=True)
    return model, kept["projected"], cache.layers[0].keys[0].transpose(0, 1)


def source_of(model: Any) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def source(positions: Tensor) -> tuple[Tensor, Tensor]:
        cosines, sines = model.model.rotary_emb(torch.empty(1), positions)
        return cosines, sines

    return source


@pytest.mark.parametrize("name", MODELS)
def test_a_models_keys_are_taken_back_and_turned_again_as_it_does(name: str) -> None:
    config, layout = MODELS[name]
    model, before, after = keys_of(config)
    positions = torch.arange(len(before))
    rotary = Rotary.found(source_of(model), before, after, positions)
    torch.testing.assert_close(rotary.turned(before, positions), after, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rotary.unturned(after, positions), before, atol=1e-5, rtol=1e-5)
    other = Rotary(source_of(model), NEIGHBOURS if layout == HALVES else HALVES)
    assert not torch.allclose(other.turned(before, positions), after, atol=1e-2)


def test_one_rounding_to_16_bits_loses_about_as_much_again_on_the_way_back() -> None:
    before = randn(200, 2, 16)
    positions = torch.arange(200)
    rotary = Rotary(turn)
    rounded = rotary.turned(before, positions).bfloat16()
    assert (rotary.unturned(rounded, positions) - before).norm() < 4e-3 * before.norm()


def test_keys_that_turn_in_an_unknown_way_are_refused() -> None:
    before, positions = randn(30, 2, 16), torch.arange(30)
    with pytest.raises(UnsupportedModel, match="a way that is unknown"):
        Rotary.found(turn, before, before.flip(2), positions)


def test_an_embedding_that_changes_with_the_length_is_refused() -> None:
    """Trap 33: keys would be turned by other angles than those they were computed with."""
    model, *_ = keys_of(LlamaConfig(**SIZES, max_position_embeddings=64, rope_parameters=DYNAMIC))
    with pytest.raises(UnsupportedModel, match="changes with the length"):
        Rotary(source_of(model))


LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "factor": 8.0,
}


@pytest.mark.parametrize("original_len", [4096, 131_072, 1_048_576, 10_485_760])
@pytest.mark.parametrize("scaled", [DYNAMIC, LONG], ids=["dynamic", "longrope"])
def test_an_embedding_that_changes_behind_a_models_own_length_is_refused(
    scaled: dict[str, Any], original_len: int
) -> None:
    """Trap 33: however long that is; a call behind it changes what the first positions are turned by."""
    parameters = scaled | {"original_max_position_embeddings": original_len}
    config = LlamaConfig(**SIZES, max_position_embeddings=original_len, rope_parameters=parameters)
    source = source_of(AutoModelForCausalLM.from_config(config))
    near, behind = torch.arange(1000), torch.tensor([original_len + original_len // 8])
    alone, _ = source(near[None])
    changed, _ = source(torch.cat((near, behind))[None])
    assert (changed[0, :-1] - alone[0]).abs().max() > 0.1
    source(near[None])
    with pytest.raises(UnsupportedModel, match="changes with the length"):
        Rotary(source)


def test_what_is_no_rotation_times_a_number_is_refused() -> None:
    def two_angles(positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[..., None] * torch.linspace(0.1, 1, 16)
        return angles.cos(), angles.sin()

    def stretched(positions: Tensor) -> tuple[Tensor, Tensor]:
        cosines, sines = turn(positions)
        return 2 * cosines, sines

    with pytest.raises(UnsupportedModel, match="two angles"):
        Rotary(two_angles)
    with pytest.raises(UnsupportedModel, match="lengths of keys"):
        Rotary(stretched)
    with pytest.raises(UnsupportedModel, match="5 numbers"):
        Rotary(lambda positions: (torch.ones(1, positions.shape[1], 5),) * 2)
