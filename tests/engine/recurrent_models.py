"""Tiny models with recurrent layers, one config for each class that transformers generates with."""

from pathlib import Path
from typing import Any

import transformers

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
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
_MAMBA = {"hidden_size": 64, "state_size": 16, "num_hidden_layers": 4, "tie_word_embeddings": False}
_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}
_KDA = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "max_position_embeddings": 2048,
}
_CONV = {"layer_types": ["conv", "full_attention"] * 2}
_ZAMBA = _ATTENTION | {"num_hidden_layers": 6, "num_key_value_heads": 4, "mamba_d_state": 16}
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

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3Next": ("qwen3_next", _HEADS | _EXPERTS | _DELTA),
    "Qwen3_5": ("qwen3_5_text", _HEADS | _DELTA),
    "Qwen3_5Moe": ("qwen3_5_moe_text", _HEADS | _EXPERTS | _DELTA),
    "OlmoHybrid": ("olmo_hybrid", _ATTENTION | _DELTA | {"linear_num_key_heads": 4}),
    "KimiLinear": ("kimi_linear", _KDA | {"linear_head_dim": 16, "linear_num_heads": 4}),
    "BailingHybrid": (
        "bailing_hybrid",
        _KDA
        | {"n_group": 1, "topk_group": 1, "head_dim": 16, "first_k_dense_replace": 1, "num_mtp_layers": 0},
    ),
    "Mamba": (
        "mamba",
        {"hidden_size": 64, "state_size": 16, "num_hidden_layers": 4, "tie_word_embeddings": False},
    ),
    "FalconMamba": ("falcon_mamba", _MAMBA),
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
    "Bamba": ("bamba", _ATTENTION | _MAMBA2 | {"attn_layer_indices": [1, 3]}),
    "GraniteMoeHybrid": (
        "granitemoehybrid",
        _ATTENTION
        | _MAMBA2
        | {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 64,
            "layer_types": ["mamba", "attention"] * 2,
        },
    ),
    "FalconH1": ("falcon_h1", _HEADS | _MAMBA2 | {"num_hidden_layers": 3, "mamba_d_ssm": 128}),
    "NemotronH": (
        "nemotron_h",
        {name: value for name, value in _HEADS.items() if name != "num_hidden_layers"}
        | {
            "layer_types": ["linear_attention", "mlp", "full_attention", "moe", "linear_attention"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
            "n_groups": 2,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 32,
        },
    ),
    "Zamba": (
        "zamba",
        _ZAMBA
        | {
            "n_mamba_heads": 2,
            "tie_word_embeddings": True,
            "layers_block_type": [
                *["linear_attention"] * 2,
                "hybrid",
                "linear_attention",
                "hybrid",
                "linear_attention",
            ],
        },
    ),
    "Zamba2": (
        "zamba2",
        _ZAMBA
        | {
            "n_mamba_heads": 8,
            "num_mem_blocks": 1,
            "layers_block_type": ["mamba", "hybrid", "mamba", "mamba", "hybrid", "mamba"],
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
    "Lfm2": ("lfm2", _ATTENTION | _CONV),
    "Lfm2Moe": ("lfm2_moe", _ATTENTION | _CONV | _EXPERTS | {"num_dense_layers": 1}),
    "Lfm3": (
        "lfm3",
        _HEADS
        | {"sliding_window": 24, "layer_types": ["conv", "full_attention", "conv", "sliding_attention"]},
    ),
    "Inkling": ("inkling_text", _INKLING | {"n_shared_experts": 1, "logits_mup_width_multiplier": 1.0}),
    "Inkling2": (
        "inkling2_text",
        {name: value for name, value in _INKLING.items() if name != "intermediate_size"}
        | {"unpadded_vocab_size": VOCAB_SIZE, "log_scaling_n_floor": 64},
    ),
    "MiniMax": (
        "minimax",
        _HEADS
        | {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "block_size": 32,
            "layer_types": ["linear_attention", "full_attention"] * 2,
        },
    ),
    "RecurrentGemma": (
        "recurrent_gemma",
        _ATTENTION
        | {
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "lru_width": 64,
            "tie_word_embeddings": False,
            "attention_window_size": 24,
            "w_init_variance_scale": 1.5,
        },
    ),
    "Rwkv": ("rwkv", {"hidden_size": 64, "num_hidden_layers": 4, "rescale_every": 2}),
    "xLSTM": ("xlstm", {"hidden_size": 128, "num_hidden_layers": 4, "num_blocks": 4, "num_heads": 8}),
    "Zaya": (
        "zaya",
        {name: value for name, value in _HEADS.items() if name != "intermediate_size"}
        | {
            "num_hidden_layers": 3,
            "tie_word_embeddings": False,
            "num_experts": 4,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 32,
            "router_hidden_size": 32,
            "sliding_window": 24,
            "layer_types": ["hybrid", "hybrid_sliding", "hybrid"],
        },
    ),
}


def save_recurrent(name: str, model_dir: Path) -> Path:
    """Write a model of one of the classes with weights that follow from its config."""
    model_type, changes = CONFIGS[name]
    return save_model(transformers.CONFIG_MAPPING[model_type](**_SHARED | changes), model_dir)
