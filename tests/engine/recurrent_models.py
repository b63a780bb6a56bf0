"""Tiny models with recurrent layers: configs of our own, and those of the survey for the other classes."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import transformers

from benchmarks.models.configs import find_case, tiny_config
from tests.engine.tiny_models import VOCAB_SIZE, save_model

_SHARED = {
    "vocab_size": VOCAB_SIZE,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_ATTENTION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "max_position_embeddings": 2048,
}
_HEADS = _ATTENTION | {"head_dim": 16}
_INKLING = _HEADS | {
    "num_hidden_layers": 3,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "sliding_window_size": 24,
    "rel_extent": 48,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
}
_OF_STATES = {
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "mamba_d_head", "mamba_d_state"), 16),
    **dict.fromkeys(("mamba_head_dim", "ssm_state_size"), 16),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    "mamba_n_groups": 1,
    "mamba_d_ssm": 128,
}
"""Sizes of the classes that are not below, as far as they have them."""

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3_5": (
        "qwen3_5_text",
        _HEADS
        | {
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"] * 2,
        },
    ),
    "KimiLinear": (
        "kimi_linear",
        _ATTENTION
        | {
            "moe_intermediate_size": 32,
            "num_key_value_heads": 4,
            "kv_lora_rank": 32,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 12,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_head_dim": 16,
            "linear_num_heads": 4,
        },
    ),
    "Mamba": (
        "mamba",
        {"hidden_size": 64, "state_size": 16, "num_hidden_layers": 4, "tie_word_embeddings": False},
    ),
    "Mamba2": (
        "mamba2",
        {
            "hidden_size": 64,
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 16,
            "num_hidden_layers": 4,
            "n_groups": 2,
            "chunk_size": 256,
        },
    ),
    "Jamba": (
        "jamba",
        _ATTENTION
        | {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "mamba_d_state": 16,
        },
    ),
    "Lfm2": ("lfm2", _ATTENTION | {"layer_types": ["conv", "full_attention"] * 2}),
    "FalconH1": (
        "falcon_h1",
        _HEADS
        | {
            "num_hidden_layers": 3,
            "mamba_d_state": 16,
            "mamba_d_head": 16,
            "mamba_n_heads": 8,
            "mamba_n_groups": 1,
            "mamba_d_ssm": 128,
        },
    ),
    "Inkling": ("inkling_text", _INKLING | {"n_shared_experts": 1, "logits_mup_width_multiplier": 1.0}),
    "Inkling2": (
        "inkling2_text",
        {name: value for name, value in _INKLING.items() if name != "intermediate_size"}
        | {"unpadded_vocab_size": VOCAB_SIZE, "log_scaling_n_floor": 64},
    ),
    "xLSTM": ("xlstm", {"hidden_size": 128, "num_hidden_layers": 4, "num_blocks": 4, "num_heads": 8}),
}


def save_recurrent(name: str, model_dir: Path) -> Path:
    """Write a model of one of the classes with weights that follow from its config."""
    if name not in CONFIGS:
        case = find_case(f"{name}ForCausalLM")
        known = {field.name for field in fields(transformers.CONFIG_MAPPING[case.model_type])}
        changes = _SHARED | {"max_position_embeddings": 2048}
        changes |= {size: number for size, number in _OF_STATES.items() if size in known}
        return save_model(tiny_config(replace(case, changes=case.changes | changes)), model_dir)
    model_type, changes = CONFIGS[name]
    return save_model(transformers.CONFIG_MAPPING[model_type](**_SHARED | changes), model_dir)
