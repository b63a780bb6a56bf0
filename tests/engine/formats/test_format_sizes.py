"""Bytes of a conversation in each format."""

from typing import Any

import pytest

from kvchat.engine.formats.format_sizes import BLOCK_SIZE, format_sizes
from kvchat.engine.formats.kv_size import cache_sizes, read_shape

pytestmark = pytest.mark.pure

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "dtype": "bfloat16",
}
MLA: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 3,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "dtype": "bfloat16",
}
TOKEN = 4 * 2 * (128 + 128) * 2
"""Bytes of one exact token in all layers of the first model."""


def sizes(config: dict[str, Any], context_len: int) -> dict[str, int]:
    return {size.name: size.context_bytes for size in format_sizes(read_shape(config), context_len)}


@pytest.mark.parametrize("config", [LLAMA, MLA])
def test_the_exact_format_is_counted_as_everywhere(config: dict[str, Any]) -> None:
    shape = read_shape(config)
    exact = format_sizes(shape, 8192)[0]
    assert (exact.name, exact.is_exact) == ("exact", True)
    assert exact.context_bytes == cache_sizes(shape, 8192)[0].context_bytes


def test_a_window_takes_the_same_however_long_the_conversation() -> None:
    """The first block, sixteen before the present one, and that."""
    assert sizes(LLAMA, 16_384 + 1)["window:1024"] == (1 + 16 + 1) * BLOCK_SIZE * TOKEN
    assert sizes(LLAMA, 65_536 + 1)["window:1024"] == sizes(LLAMA, 16_384 + 1)["window:1024"]
    assert sizes(LLAMA, 640)["window:1024"] == sizes(LLAMA, 640)["exact"]


def test_a_pruned_prompt_takes_what_is_kept_its_first_block_and_its_end() -> None:
    length = 100 * BLOCK_SIZE
    wanted = (1 + 16 + 1) * BLOCK_SIZE * TOKEN  # the last 32 tokens lie in one block
    assert {sizes(LLAMA, length)[f"{rule}:1024"] for rule in ("knorm", "keydiff", "snapkv")} == {wanted}
    assert sizes(LLAMA, 1024)["snapkv:1024"] == sizes(LLAMA, 1024)["exact"]


def test_layers_with_a_window_take_what_they_take() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    config = LLAMA | {"layer_types": kinds, "sliding_window": 128}
    exact, seen = (sizes(config, 32_768)[name] for name in ("exact", "window:1024"))
    sliding = 2 * BLOCK_SIZE * TOKEN // 2
    assert exact == 32_768 * TOKEN // 2 + sliding
    assert seen == (1 + 16) * BLOCK_SIZE * TOKEN // 2 + sliding


def test_a_shadow_takes_all_blocks_and_what_lies_beside_them() -> None:
    """At most: keys that no basis holds as codes, 8,192 of them as they are, a landmark for each 8, and what
    every step sees.
    """
    wide, length = LLAMA | {"num_key_value_heads": 4}, 32_768
    found = {size.name: size for size in format_sizes(read_shape(wide), length)}
    exact, seen = found["exact"].context_bytes, found["shadow:1024"]
    assert seen.context_bytes == exact + seen.beside_bytes
    assert 7 / 16 * exact < seen.beside_bytes < 7 / 16 * exact + 4 * 2**20
    assert not any(size.beside_bytes for name, size in found.items() if name != "shadow:1024")
    short = {size.name: size for size in format_sizes(read_shape(wide), 1024)}
    assert (short["shadow:1024"].beside_bytes, short["shadow:1024"].is_exact) == (0, False)


def test_formats_that_a_model_cannot_take_are_left_out() -> None:
    assert list(sizes(MLA, 8192)) == ["exact", "fp8"]
