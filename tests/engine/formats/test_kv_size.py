"""Bytes of a cache from a config alone: published figures, and configs that contradict themselves."""

from typing import Any

import pytest

from kvchat.engine.formats.kv_size import AttentionShape, CacheSize, cache_sizes, read_shape
from kvchat.errors import ModelUnreadable

pytestmark = pytest.mark.pure

K128 = 131_072
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
}
QWEN_72B = {
    "model_type": "qwen2",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 131_072,
    "use_sliding_window": False,
}
LLAMA_405B = {
    "model_type": "llama",
    "num_hidden_layers": 126,
    "hidden_size": 16_384,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
}


def sizes(config: dict[str, Any], context_len: int = K128) -> dict[str, CacheSize]:
    return {size.name: size for size in cache_sizes(read_shape(config), context_len)}


def shape(**changes: Any) -> AttentionShape:
    return read_shape(LLAMA_405B | changes)


@pytest.mark.parametrize(
    ("config", "token_bytes"), [(DEEPSEEK_V3, 70_272), (QWEN_72B, 327_680), (LLAMA_405B, 516_096)]
)
def test_bytes_per_token_are_the_published_ones(config: dict[str, Any], token_bytes: int) -> None:
    (own,) = [size for size in sizes(config).values() if size.is_own]
    assert own.token_bytes == token_bytes
    assert own.context_bytes == token_bytes * K128


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("latent (MLA)", 8.578),
        ("latent alone", 7.625),
        ("two vectors of the model's width", 213.5),
        ("a key-value head for every query head (MHA)", 610.0),
    ],
)
def test_deepseek_v3_at_128k_takes_what_is_quoted(name: str, gib: float) -> None:
    assert round(sizes(DEEPSEEK_V3)[name].context_bytes / 2**30, 3) == gib


@pytest.mark.parametrize(("num_heads", "shared"), [(128, 8), (20, 5), (8, 4), (4, 2), (2, None), (1, None)])
def test_latents_are_beside_as_many_shared_heads_as_the_model_could_have(
    num_heads: int, shared: int | None
) -> None:
    changes = {"num_attention_heads": num_heads, "num_key_value_heads": num_heads}
    names = [size.name for size in cache_sizes(read_shape(DEEPSEEK_V3 | changes), K128)]
    assert [name for name in names if "GQA" in name] == (
        [] if shared is None else [f"{shared} key-value heads (GQA)"]
    )


def test_layers_with_a_window_keep_the_window() -> None:
    kinds = ["sliding_attention", "full_attention"] * 63
    own = cache_sizes(shape(layer_types=kinds, sliding_window=1024), K128)[0]
    assert own.token_bytes == 516_096
    assert own.context_bytes == 63 * 4096 * (1024 + K128)


def test_layers_that_read_another_layers_cache_keep_nothing() -> None:
    assert len(shape(num_kv_shared_layers=26).visible) == 100


def test_layers_of_another_kind_than_attention_keep_nothing() -> None:
    kinds = ["linear_attention", "linear_attention", "full_attention"] * 42
    assert shape(layer_types=kinds).visible == (None,) * 42


@pytest.mark.parametrize(
    ("kinds", "part"),
    [
        (["full_attention", "indexed_attention"], "layers of type indexed_attention keep is not known"),
        (["linear_attention", "linear_attention"], "no layer keeps keys and values"),
    ],
)
def test_layers_that_cannot_be_counted_are_refused_rather_than_left_out(kinds: list[str], part: str) -> None:
    with pytest.raises(ModelUnreadable, match=part):
        shape(layer_types=kinds * 63)


def test_names_that_older_configs_use_are_understood() -> None:
    old = read_shape({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "dtype": "float32"})
    assert (old.num_layers, old.num_heads, old.num_kv_heads, old.dim_k) == (12, 12, 12, 64)
    assert read_shape({"text_config": LLAMA_405B, "model_type": "vision"}).num_layers == 126


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"num_hidden_layers": None}, "no num_hidden_layers"),
        ({"num_hidden_layers": 0}, "above 0"),
        ({"hidden_size": "large"}, "not 'large'"),
        ({"num_key_value_heads": 7}, "do not share"),
        ({"num_key_value_heads": 256}, "do not share"),
        ({"dtype": "int3"}, "int3"),
        ({"layer_types": ["full_attention"]}, "1 layer types for 126 layers"),
        ({"kv_lora_rank": 512}, "no qk_rope_head_dim"),
        ({"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}, "no kv_lora_rank"),
        (DEEPSEEK_V3 | {"qk_rope_head_dim": 63}, "odd"),
        (DEEPSEEK_V3 | {"qk_head_dim": 128}, "qk_head_dim"),
        ({"sliding_window": -5}, "sliding_window"),
    ],
)
def test_a_config_that_cannot_be_right_is_refused(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(ModelUnreadable, match=part):
        read_shape(LLAMA_405B | changes)
