"""Configs of latent models that are wrong: refused with what is wrong, or handled; never a wrong answer."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvchat.errors import ModelUnreadable
from tests.engine.conftest import OpenEngine
from tests.engine.latent_models import model_of
from tests.engine.tiny_models import answer, reference, token_ids

pytestmark = pytest.mark.cpu

LEFT_OUT = object()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_of("V3, YaRN, queries compressed", tmp_path_factory.mktemp("latent"))


@pytest.fixture
def copy(model_dir: Path, tmp_path: Path) -> Path:
    """A model with the same weights and a config of its own."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in model_dir.iterdir():
        (copy / file.name).symlink_to(file)
    return copy


def change(model_dir: Path, changes: dict[str, Any]) -> None:
    path = model_dir / "config.json"
    config = json.loads(path.read_text()) | changes
    path.unlink()
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not LEFT_OUT}))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"kv_lora_rank": 0}, "kv_lora_rank must be a number above 0, not 0"),
        ({"kv_lora_rank": -16}, "kv_lora_rank must be a number above 0, not -16"),
        ({"kv_lora_rank": None}, "'kv_lora_rank' expected int"),
        ({"kv_lora_rank": "16"}, "'kv_lora_rank' expected int"),
        ({"kv_lora_rank": LEFT_OUT}, r"kv_a_layernorm.weight is \[16\] in the weights and \[512\] by config"),
        ({"kv_lora_rank": 17}, r"kv_a_layernorm.weight is \[16\] in the weights and \[17\] by config"),
        ({"kv_lora_rank": 8, "qk_rope_head_dim": 16}, "qk_head_dim is 20, but"),
        ({"qk_rope_head_dim": 0}, "qk_rope_head_dim must be a number above 0"),
        ({"qk_rope_head_dim": 7, "qk_nope_head_dim": 13}, r"qk_rope_head_dim is odd \(7\)"),
        ({"qk_rope_head_dim": LEFT_OUT}, "qk_head_dim is 20, but"),
        ({"qk_nope_head_dim": 10}, "qk_head_dim is 20, but"),
        ({"qk_nope_head_dim": 10, "qk_head_dim": 18}, r"in the weights and .* by config"),
        ({"v_head_dim": None}, "v_head_dim"),
        ({"v_head_dim": LEFT_OUT}, r"in the weights and .* by config"),
        ({"num_attention_heads": 8}, r"in the weights and .* by config"),
        ({"q_lora_rank": LEFT_OUT}, r"in the weights and .* by config"),
        ({"q_lora_rank": None}, "lacks 3 of the model's weights"),
        ({"q_lora_rank": 12}, r"q_a_layernorm.weight is \[24\] in the weights and \[12\]"),
        ({"rope_interleave": "maybe"}, "rope_interleave"),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "spiral"),
    ],
    ids=lambda value: None if isinstance(value, str) else ", ".join(value),
)
def test_a_config_that_cannot_be_right_is_refused_with_what_is_wrong(
    copy: Path, changes: dict[str, Any], part: str, open_engine: OpenEngine
) -> None:
    change(copy, changes)
    with pytest.raises(ModelUnreadable, match=part):
        open_engine(copy)


@pytest.mark.parametrize("changes", [{"rope_interleave": False}, {"rope_interleave": None}])
def test_another_rope_of_which_the_order_is_known_is_as_transformers_has_it(
    copy: Path, changes: dict[str, Any], open_engine: OpenEngine
) -> None:
    change(copy, changes)
    prompt = token_ids(40)
    assert answer(open_engine(copy), prompt, 8).token_ids == reference(copy).answer(prompt, 8)
