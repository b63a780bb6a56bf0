"""A tiny config for every causal-LM class of the installed transformers.

Sizes are set wherever a config class has a field of that name, so a new architecture needs no line here
unless its fields depend on each other. Weights are wide (std 0.15): greedy answers vary, and a wrong key
shows in them.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCAB_SIZE = 512
MAX_CONTEXT = 512
WINDOW = 24

_SIZES: dict[str, Any] = {
    # ids and initialisation
    "vocab_size": VOCAB_SIZE,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.15,
    "init_std": 0.15,
    # width and depth, under all their names
    "hidden_size": 64,
    "n_embd": 64,
    "d_model": 64,
    "word_embed_proj_dim": 64,
    "embedding_size": 64,
    "intermediate_size": 128,
    "n_inner": 128,
    "ffn_dim": 128,
    "d_ff": 128,
    "ffn_hidden_size": 128,
    "decoder_ffn_dim": 128,
    "encoder_ffn_dim": 128,
    "num_hidden_layers": 4,
    "num_layers": 4,
    "n_layer": 4,
    "n_layers": 4,
    "decoder_layers": 4,
    "encoder_layers": 4,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_CONTEXT,
    "n_positions": MAX_CONTEXT,
    "max_seq_len": MAX_CONTEXT,
    # what queries see
    "sliding_window": WINDOW,
    "attention_chunk_size": WINDOW,
    # experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    # latents
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
_CLASSES: dict[str, str] = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | {"mistral4": "Mistral4ForCausalLM"}
"""By model type; transformers has no causal-LM entry for Mistral 4."""
_LATENT = {"num_key_value_heads": 4, "head_dim": 8}
_ROPE = {"rope_theta": 10000.0}

# Model type -> fields that the sizes above leave in contradiction.
_CHANGES: dict[str, dict[str, Any]] = {
    "axk1": _LATENT,
    "axk2": _LATENT,
    "bailing_hybrid": _LATENT | {"layer_types": ["linear_attention", "full_attention"] * 2},
    "bamba": {"attn_layer_indices": [1, 3], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16},
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "cohere_compass_text": {
        "rope_parameters": {kind: {"rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")}
    },
    "cwm": {"eos_token_id": [2]},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT | {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 16},
    "dots1": {"n_shared_experts": 1},
    "dots3_note_text": {
        "num_key_value_heads": 4,
        "head_dim": 24,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_topk": 16,
        "shared_experts_intermediate_size": 32,
        "per_layer_config": {str(layer): {"num_attention_heads": 4, "v_head_dim": 12} for layer in (2, 3)},
    },
    "gemma3n_text": {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "intermediate_size": [128] * 6,
        "activation_sparsity_pattern": [0.0] * 6,
        "hidden_size_per_layer_input": 16,
        "laurel_rank": 8,
        "vocab_size_per_layer_input": VOCAB_SIZE,
    },
    "gemma4_text": {
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "global_head_dim": 32,
    },
    "gemma4_assistant": {"hidden_size_per_layer_input": 0},
    "glm4_moe_lite": _LATENT,
    "glm_moe_dsa": _LATENT | {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": WINDOW, "hidden_size": 64},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"] * 2,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": _LATENT | {"layer_types": ["linear_attention", "full_attention"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": _LATENT | {"ffn_hidden_size": 64, "expert_ffn_hidden_size": 32, "zero_expert_num": 2},
    "mistral4": _LATENT,
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16},
    "minicpm3": _LATENT,
    "qwen4_exp_text": {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "layer_types": ["linear_attention", "indexed_attention"] * 2,
        "hc_count": 2,
        "hc_lowrank": 16,
        "ple_layer_ids": [1],
        "ngram_size": 3,
        "heads_per_ngram": 4,
        "ple_embed_dim": 64,
        "ngram_vocab_size_base": 997,
        "split_ngram_parts": 1,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "reformer": {"is_decoder": True},
    "xlm": {"emb_dim": 64, "n_words": VOCAB_SIZE, "causal": True},
    "xmod": {"is_decoder": True, "pad_token_id": 1, "default_language": "en_XX"},
    "xlstm": {"hidden_size": 128, "num_heads": 8, "num_blocks": 4},
    "youtu": _LATENT,
    "zamba": {
        "num_hidden_layers": 6,
        "num_key_value_heads": 4,
        "n_mamba_heads": 2,
        "mamba_d_state": 16,
        "tie_word_embeddings": True,
        "layers_block_type": ["linear_attention"] * 2 + ["hybrid", "linear_attention"] * 2,
    },
    "zamba2": {
        "num_hidden_layers": 6,
        "num_key_value_heads": 4,
        "n_mamba_heads": 8,
        "mamba_d_state": 16,
        "num_mem_blocks": 1,
        "layers_block_type": ["mamba", "hybrid", "mamba", "mamba", "hybrid", "mamba"],
    },
    "zaya": {"num_experts_per_tok": 1},
    "bert": {"is_decoder": True},
    "bert-generation": {"is_decoder": True},
    "big_bird": {"is_decoder": True, "attention_type": "original_full"},
    "camembert": {"is_decoder": True, "pad_token_id": 1},
    "data2vec-text": {"is_decoder": True, "pad_token_id": 1},
    "electra": {"is_decoder": True},
    "ernie": {"is_decoder": True},
    "megatron-bert": {"is_decoder": True},
    "rembert": {"is_decoder": True},
    "roberta": {"is_decoder": True, "pad_token_id": 1},
    "roberta-prelayernorm": {"is_decoder": True, "pad_token_id": 1},
    "roc_bert": {"is_decoder": True},
    "roformer": {"is_decoder": True},
    "xlm-roberta": {"is_decoder": True, "pad_token_id": 1},
    "xlm-roberta-xl": {"is_decoder": True, "pad_token_id": 1},
    "cpmant": {"num_hidden_layers": 2, "dim_ff": 128, "dim_head": 16},
}

# Further configs of an architecture: (model type, what is different, fields).
_VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "rope linear", {"rope_parameters": _ROPE | {"rope_type": "linear", "factor": 4.0}}),
    (
        "llama",
        "rope yarn",
        {
            "rope_parameters": _ROPE
            | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
        },
    ),
    (
        "llama",
        "rope llama3",
        {
            "rope_parameters": _ROPE
            | {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    ("llama", "rope dynamic", {"rope_parameters": _ROPE | {"rope_type": "dynamic", "factor": 4.0}}),
    (
        "phi3",
        "rope longrope",
        {
            "original_max_position_embeddings": 256,
            "rope_parameters": _ROPE
            | {
                "rope_type": "longrope",
                "short_factor": [1.1] * 8,
                "long_factor": [4.0] * 8,
                "original_max_position_embeddings": 256,
            },
        },
    ),
    ("phi3", "window", {"sliding_window": WINDOW}),
    (
        "qwen3",
        "full and sliding",
        {
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    (
        "qwen2",
        "full and sliding",
        {
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 2,
            "layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 2,
        },
    ),
    (
        "llama4_text",
        "temperature tuning",
        {"attn_temperature_tuning": True, "floor_scale": 16, "no_rope_layers": [1, 0, 1, 0]},
    ),
    (
        "deepseek_v3",
        "rope yarn",
        _LATENT
        | {
            "rope_parameters": _ROPE
            | {
                "rope_type": "yarn",
                "factor": 4.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    ("falcon", "alibi", {"alibi": True}),
    ("falcon", "new decoder", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("gpt_bigcode", "a key head per query head", {"multi_query": False}),
    ("gemma2", "soft cap", {"attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16}),
    ("starcoder2", "window", {"sliding_window": WINDOW}),
    ("big_bird", "block sparse", {"attention_type": "block_sparse"}),
    ("minimax_m3_vl_text", "sparse layers", {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2}),
]


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table: a class, and what is special about its config."""

    model_type: str
    variant: str = ""
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def class_name(self) -> str:
        return _CLASSES[self.model_type]

    @property
    def name(self) -> str:
        return f"{self.class_name} ({self.variant})" if self.variant else self.class_name


def all_cases() -> Iterator[Case]:
    """Yield a case for each class that transformers knows, and the variants, in the order of their names."""
    cases = [Case(kind) for kind in _one_type_per_class()]
    cases += [Case(kind, variant, changes) for kind, variant, changes in _VARIANTS]
    yield from sorted(cases, key=lambda case: case.name.lower())


def find_case(name: str) -> Case:
    """Return the case with this name, or the plain one of this model type."""
    return next(case for case in all_cases() if name in (case.name, case.model_type))


def _one_type_per_class() -> list[str]:
    """Return a model type for each class: the one that the class is named after, or for text alone."""
    chosen: dict[str, str] = {}
    for kind, name in _CLASSES.items():
        is_namesake = name.lower() in (kind.replace("_", "") + end for end in ("forcausallm", "lmheadmodel"))
        if name not in chosen or is_namesake or kind.endswith("_text"):
            chosen[name] = kind
    return list(chosen.values())


def tiny_config(case: Case) -> Any:
    """Return the case's config."""
    config_class: Any = CONFIG_MAPPING[case.model_type]
    parts = {name: _tiny(type(part)) for name, part in _parts(config_class).items()}
    return _tiny(config_class, parts | case.changes)


def _parts(config_class: Any) -> dict[str, Any]:
    """Return the configs inside a config: of the text, of what is seen, and so on."""
    names = list(getattr(config_class, "sub_configs", {}))
    whole = config_class() if names else None
    return {name: part for name in names if (part := getattr(whole, name, None)) is not None}


def _tiny(config_class: Any, changes: dict[str, Any] | None = None) -> Any:
    defaults = {item.name: item.default for item in dataclasses.fields(config_class)}
    sizes = {name: value for name, value in _SIZES.items() if name in defaults}
    if defaults.get("sliding_window") is None:
        sizes.pop("sliding_window", None)
    return config_class(**sizes | _CHANGES.get(config_class.model_type, {}) | (changes or {}))
