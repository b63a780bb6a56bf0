"""Tiny DeepSeek models of random weights: V2 and V3, with and without YaRN and compressed queries."""

from itertools import product
from pathlib import Path
from typing import Any

import transformers

from tests.engine.tiny_models import save_model

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 2,
    "initializer_range": 0.15,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 20,
    "max_position_embeddings": 512,
    "eos_token_id": None,
}
"""Keys and values differ in size, so that their projections cannot be exchanged unnoticed."""
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
    "original_max_position_embeddings": 64,
}
_CLASSES = {"V2": transformers.DeepseekV2Config, "V3": transformers.DeepseekV3Config}
_ROPES: dict[str, dict[str, Any]] = {"": {}, ", YaRN": {"rope_parameters": YARN}}
_QUERIES: dict[str, dict[str, Any]] = {"": {"q_lora_rank": None}, ", queries compressed": {"q_lora_rank": 24}}
KINDS = {
    name + rope + query: (config, _ROPES[rope] | _QUERIES[query])
    for (name, config), rope, query in product(_CLASSES.items(), _ROPES, _QUERIES)
}
"""All eight."""


def model_of(kind: str, tmp_path: Path, **changes: Any) -> Path:
    """Write the model of this kind and return its directory."""
    config, fields = KINDS[kind]
    return save_model(config(**SIZES | fields | changes), tmp_path / "model")
