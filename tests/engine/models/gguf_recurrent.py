"""What llama.cpp's converter writes for models with recurrent layers (conversion/ of llama.cpp)."""

from typing import Any

import numpy as np
from gguf import GGUFWriter

Tensors = dict[str | None, np.ndarray]
"""Tensors of the file by their names there, None: the name that the library has for the parameter."""

_DELTA_NET = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 3,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 96,
}
_MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 64,
    "mamba_d_state": 32,
    "mamba_n_groups": 2,
    "mamba_d_conv": 3,
    "rms_norm_eps": 1e-3,
}
_GRANITE = _MAMBA2 | {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 96,
    "intermediate_size": 64,
    "attention_multiplier": 0.1,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
    "layer_types": ["linear_attention", "full_attention"],
}
_DENSE = {"num_local_experts": 0, "num_experts_per_tok": 0, "intermediate_size": 96}
_FALCON = _MAMBA2 | {
    "mamba_d_ssm": 512,
    "mamba_norm_before_gate": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}
_NEMOTRON: dict[str, Any] = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention"],
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
    "ssm_state_size": 32,
    "n_groups": 2,
    "conv_kernel": 3,
    "head_dim": 32,
    "layer_norm_epsilon": 1e-3,
    "num_hidden_layers": 3,
}
_NEMOTRON_EXPERTS = _NEMOTRON | {
    "layers_block_type": ["linear_attention", "moe", "full_attention"],
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 96,
    "routed_scaling_factor": 1.5,
}
_MAMBA: dict[str, Any] = {
    "state_size": 32,
    "conv_kernel": 3,
    "layer_norm_epsilon": 1e-3,
    "tie_word_embeddings": False,
}
_JAMBA: dict[str, Any] = {
    "num_hidden_layers": 3,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 0,
    "num_experts": 1,
    "num_experts_per_tok": 1,
    "mamba_d_state": 32,
    "mamba_d_conv": 3,
    "mamba_dt_rank": 32,
    "rms_norm_eps": 1e-3,
}
_MULTIPLIERS: dict[str, Any] = {
    "embedding_multiplier": 4.0,
    "lm_head_multiplier": 0.25,
    "key_multiplier": 0.5,
    "attention_in_multiplier": 2.0,
    "attention_out_multiplier": 0.5,
    "ssm_in_multiplier": 2.0,
    "ssm_out_multiplier": 0.5,
    "mlp_multipliers": [0.5, 2.0],
    "ssm_multipliers": [0.5, 1.0, 2.0, 0.25, 4.0],
}
"""Powers of two, by which blocks can be multiplied as well as what they are made of."""
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen35": ("qwen3_5_text", _DELTA_NET),
    "qwen35moe": ("qwen3_5_moe_text", _DELTA_NET | _EXPERTS),
    "qwen35moe:fused": (
        "qwen3_5_moe_text",
        _DELTA_NET | _EXPERTS | {"layer_types": ["full_attention", "linear_attention"]},
    ),
    "qwen3next": ("qwen3_next", _DELTA_NET | _EXPERTS),
    "qwen3next:first": ("qwen3_next", _DELTA_NET | _EXPERTS),
    "granitehybrid": ("granitemoehybrid", _GRANITE | _DENSE),
    "granitehybrid:experts": ("granitemoehybrid", _GRANITE),
    "granitehybrid:rope": ("granitemoehybrid", _GRANITE | _DENSE | {"position_embedding_type": "rope"}),
    "falcon-h1": ("falcon_h1", _FALCON | _MULTIPLIERS),
    "falcon-h1:norm": ("falcon_h1", _FALCON | _MULTIPLIERS | {"mamba_rms_norm": True}),
    "jamba": ("jamba", _JAMBA),
    "jamba:experts": ("jamba", _JAMBA | {"num_experts": 4, "num_experts_per_tok": 2}),
    "mamba": ("mamba", _MAMBA | {"time_step_rank": 32, "tie_word_embeddings": True}),
    "mamba:norms": ("falcon_mamba", _MAMBA | {"time_step_rank": 32}),
    "mamba2": ("mamba2", _MAMBA | {"num_heads": 8, "head_dim": 64, "n_groups": 2}),
    "nemotron_h": ("nemotron_h", _NEMOTRON),
    "nemotron_h_moe": ("nemotron_h", _NEMOTRON_EXPERTS),
    "nemotron_h_moe:latent": ("nemotron_h", _NEMOTRON_EXPERTS | {"moe_latent_size": 128}),
}
"""By kind (llama.cpp's architecture, a variant behind a colon): transformers' model type, and sizes."""
_OF_ATTENTION = {
    *("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    "max_position_embeddings",
}
_WITHOUT = {
    "granitehybrid": {"head_dim"},
    "jamba": {"head_dim"},
    "mamba2": _OF_ATTENTION,
    "mamba": _OF_ATTENTION,
}
WITHOUT: dict[str, set[str]] = {kind: _WITHOUT.get(kind.partition(":")[0], set()) for kind in KINDS}
"""Names of sizes that a config does not take."""


def architecture(kind: str) -> str:
    """Return llama.cpp's name of a kind's architecture."""
    return kind.partition(":")[0]


def as_llama_cpp(kind: str, config: Any, name: str, numbers: np.ndarray) -> Tensors:
    """Return the tensors that the converter makes of a parameter."""
    change = _CHANGES.get(kind) or _CHANGES[architecture(kind)]
    layer = next((part for part in name.split(".") if part.isdigit()), None)
    return {
        None if there is None else there if layer is None else f"blk.{layer}.{there}": tensor
        for there, tensor in change(config, name, numbers).items()
    }


def permute(numbers: np.ndarray, num_heads: int) -> np.ndarray:
    """Turn the halves of every head into neighbours."""
    halves = numbers.reshape(num_heads, 2, numbers.shape[0] // num_heads // 2, *numbers.shape[1:])
    return halves.swapaxes(1, 2).reshape(numbers.shape)


def _qwen35(config: Any, name: str, numbers: np.ndarray) -> Tensors:
    """Value heads of one key head lie apart: the first ones of all key heads come first."""
    num_keys = config.linear_num_key_heads
    num_per_key = config.linear_num_value_heads // num_keys

    def tiled(values: np.ndarray, axis: int = 0) -> np.ndarray:
        heads = np.split(values, config.linear_num_value_heads, axis)
        order = [key * num_per_key + value for value in range(num_per_key) for key in range(num_keys)]
        return np.concatenate([heads[head] for head in order], axis)

    last = name.partition("linear_attn.")[2]
    if last in ("in_proj_qkv.weight", "conv1d.weight"):
        keys, values = np.split(numbers, [2 * num_keys * config.linear_key_head_dim])
        return _mamba(config, name, np.concatenate([keys, tiled(values)]))
    if last in ("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
        return _mamba(config, name, tiled(numbers))
    if last == "out_proj.weight":
        return {None: tiled(numbers, 1)}
    if name.endswith("norm.weight") and last != "norm.weight":
        return {None: numbers + 1}
    return _experts(name, numbers)


def _qwen35_fused(config: Any, name: str, numbers: np.ndarray) -> Tensors:
    if name.endswith("experts.gate_up_proj"):
        return {"ffn_gate_up_exps.weight": numbers}
    return _qwen35(config, name, numbers)


def _qwen3next(config: Any, name: str, numbers: np.ndarray) -> Tensors:
    """Queries, keys, values and gates of a key head come apart."""
    if not name.endswith("in_proj_qkvz.weight"):
        return _qwen3next_at_first(config, name, numbers)
    num_values = config.linear_num_value_heads // config.linear_num_key_heads * config.linear_value_head_dim
    ends = np.cumsum([config.linear_key_head_dim, config.linear_key_head_dim, num_values])
    heads = [np.split(head, ends) for head in np.split(numbers, config.linear_num_key_heads)]
    queries, keys, values, gates = (np.concatenate(parts) for parts in zip(*heads, strict=True))
    return {"attn_qkv.weight": np.concatenate([queries, keys, values]), "attn_gate.weight": gates}


def _qwen3next_at_first(config: Any, name: str, numbers: np.ndarray) -> Tensors:
    last = name.partition("linear_attn.")[2]
    if last in ("A_log", "dt_bias", "conv1d.weight"):
        return _mamba(config, name, numbers)
    if name.endswith("norm.weight") and last != "norm.weight":
        return {None: numbers + 1}
    return _experts(name, numbers)


def _mamba2(config: Any, name: str, numbers: np.ndarray) -> Tensors:
    """Vectors of heads become columns, factors of norms rows by groups."""
    if name.endswith((".A_log", ".D")):
        return _mamba(config, name, numbers[:, None])
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        num_groups = getattr(config, "mamba_n_groups", None) or config.n_groups
        return {None: numbers.reshape(num_groups, -1)}
    return _mamba(config, name, numbers)


def _mamba(config: Any, name: str, numbers: np.ndarray) -> Tensors:
    """Rates instead of their logarithms, and convolutions without the dimension of one."""
    last = name.rpartition(".")[2]
    if last == "A_log":
        return {"ssm_a": -np.exp(numbers)}
    if last == "D":
        return {"ssm_d": numbers}
    if last == "dt_bias":
        return {"ssm_dt.bias": numbers}
    return {None: numbers[:, 0] if name.endswith("conv1d.weight") else numbers}


def _jamba(config: Any, name: str, numbers: np.ndarray) -> Tensors:
    if "experts" in name:
        return _experts(name, numbers)
    return _mamba(config, name, numbers)


def _granite(config: Any, name: str, numbers: np.ndarray) -> Tensors:
    shared = "_shexp" if config.num_local_experts else ""
    if name.endswith("shared_mlp.input_linear.weight"):
        gate, up = np.split(numbers, 2)
        return {f"ffn_gate{shared}.weight": gate, f"ffn_up{shared}.weight": up}
    if name.endswith("shared_mlp.output_linear.weight"):
        return {f"ffn_down{shared}.weight": numbers}
    if name.endswith("router.weight"):
        return {"ffn_gate_inp.weight": numbers}
    if name.endswith("q_proj.weight"):
        return {None: permute(numbers, config.num_attention_heads)}
    if name.endswith("k_proj.weight"):
        return {None: permute(numbers, config.num_key_value_heads)}
    if "experts" in name:
        return _experts(name, numbers)
    return _mamba2(config, name, numbers)


def _falcon_h1(config: Any, name: str, numbers: np.ndarray) -> Tensors:
    if name.endswith("pre_ff_layernorm.weight"):
        return {"ffn_norm": numbers}
    if name.endswith("in_proj.weight"):
        num_groups = config.mamba_n_groups * config.mamba_d_state
        sizes = [config.mamba_d_ssm, config.mamba_d_ssm, num_groups, num_groups, config.mamba_n_heads]
        factors = np.repeat(np.array(config.ssm_multipliers, dtype=np.float32), sizes)
        return {None: numbers * factors[:, None] * config.ssm_in_multiplier}
    factors = {
        "embed_tokens": config.embedding_multiplier,
        "lm_head": config.lm_head_multiplier,
        "gate_proj": config.mlp_multipliers[0],
        "down_proj": config.mlp_multipliers[1],
        "q_proj": config.attention_in_multiplier,
        "k_proj": config.attention_in_multiplier * config.key_multiplier,
        "v_proj": config.attention_in_multiplier,
        "o_proj": config.attention_out_multiplier,
        "out_proj": config.ssm_out_multiplier,
    }
    factor = factors.get(name.split(".")[-2])
    return _mamba2(config, name, numbers) if factor is None else {None: numbers * np.float32(factor)}


def _nemotron_h(config: Any, name: str, numbers: np.ndarray) -> Tensors:
    names = {
        "mixer.in_proj.weight": "ssm_in.weight",
        "mixer.out_proj.weight": "ssm_out.weight",
        "mixer.conv1d.weight": "ssm_conv1d.weight",
        "mixer.conv1d.bias": "ssm_conv1d.bias",
        "mixer.norm.weight": "ssm_norm.weight",
        "mixer.up_proj.weight": "ffn_up.weight",
        "mixer.down_proj.weight": "ffn_down.weight",
        "mixer.q_proj.weight": "attn_q.weight",
        "mixer.k_proj.weight": "attn_k.weight",
        "mixer.v_proj.weight": "attn_v.weight",
        "mixer.o_proj.weight": "attn_output.weight",
        "mixer.gate.weight": "ffn_gate_inp.weight",
        "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
        "mixer.experts.up_proj": "ffn_up_exps.weight",
        "mixer.experts.down_proj": "ffn_down_exps.weight",
        "mixer.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
        "mixer.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
        "mixer.fc1_latent_proj.weight": "ffn_latent_down.weight",
        "mixer.fc2_latent_proj.weight": "ffn_latent_up.weight",
    }
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    if (count := heads.get(name.split(".")[-2])) is not None:
        numbers = permute(numbers, count)
    named = next((there for end, there in names.items() if name.endswith(end)), None)
    return {there or named: tensor for there, tensor in _mamba2(config, name, numbers).items()}


def _experts(name: str, numbers: np.ndarray) -> Tensors:
    if name.endswith("experts.gate_up_proj"):
        gate, up = np.split(numbers, 2, axis=1)
        return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    if name.endswith("experts.down_proj"):
        return {"ffn_down_exps.weight": numbers}
    return {None: numbers}


def write_header(writer: GGUFWriter, kind: str, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    _HEADERS[architecture(kind)](writer, config)


def _write_attention(writer: GGUFWriter, config: Any, head_counts: int | list[int]) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(head_counts)
    if hasattr(config, "head_dim"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _head_counts(config: Any) -> list[int]:
    """Layers without attention have no heads."""
    return [config.num_key_value_heads * (kind == "full_attention") for kind in config.layer_types]


def _write_delta_net(writer: GGUFWriter, config: Any) -> None:
    _write_attention(writer, config, config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    share = config.rope_parameters["partial_rotary_factor"]
    writer.add_rope_dimension_count(int(config.head_dim * share))
    writer.add_rope_dimension_sections([6, 5, 5, 0])
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    if config.layer_types[-1] == "full_attention":
        writer.add_full_attention_interval(config.layer_types.index("full_attention") + 1)
    else:
        recurrent = [kind == "linear_attention" for kind in config.layer_types]
        writer.add_array(f"{writer.arch}.attention.recurrent_layers", recurrent)
    if hasattr(config, "num_experts"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    else:
        writer.add_feed_forward_length(config.intermediate_size)


def _write_mamba2(writer: GGUFWriter, config: Any) -> None:
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_group_count(config.mamba_n_groups)
    writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)


def _write_granite(writer: GGUFWriter, config: Any) -> None:
    _write_attention(writer, config, _head_counts(config))
    _write_mamba2(writer, config)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)
    writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")


def _write_falcon_h1(writer: GGUFWriter, config: Any) -> None:
    _write_attention(writer, config, config.num_key_value_heads)
    _write_mamba2(writer, config)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _write_nemotron_h(writer: GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(_head_counts(config))
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_state_size(config.ssm_state_size)
    writer.add_ssm_group_count(config.n_groups)
    writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
    writer.add_ssm_time_step_rank(config.mamba_num_heads)
    has_experts = "moe" in config.layers_block_type
    width = config.moe_intermediate_size if has_experts else config.intermediate_size
    writer.add_feed_forward_length([width * (kind in ("mlp", "moe")) for kind in config.layers_block_type])
    if has_experts:
        writer.add_expert_count(config.n_routed_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
        if config.moe_latent_size is not None:
            writer.add_moe_latent_size(config.moe_latent_size)


def _write_mamba_alone(writer: GGUFWriter, config: Any) -> None:
    writer.add_context_length(1 << 20)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_state_size(config.state_size)
    writer.add_ssm_inner_size(config.expand * config.hidden_size)
    if hasattr(config, "n_groups"):
        writer.add_ssm_group_count(config.n_groups)
        writer.add_ssm_time_step_rank(config.num_heads)
    else:
        writer.add_ssm_time_step_rank(config.time_step_rank)
        writer.add_ssm_dt_b_c_rms(config.model_type == "falcon_mamba")


def _write_jamba(writer: GGUFWriter, config: Any) -> None:
    _write_attention(writer, config, _head_counts(config))
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
    writer.add_ssm_time_step_rank(config.mamba_dt_rank)
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)


_CHANGES = {
    "qwen35": _qwen35,
    "qwen35moe": _qwen35,
    "qwen35moe:fused": _qwen35_fused,
    "qwen3next": _qwen3next,
    "qwen3next:first": _qwen3next_at_first,
    "granitehybrid": _granite,
    "falcon-h1": _falcon_h1,
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": _nemotron_h,
    "mamba2": _mamba2,
    "mamba": _mamba,
    "jamba": _jamba,
}
_HEADERS = {
    "qwen35": _write_delta_net,
    "qwen35moe": _write_delta_net,
    "qwen3next": _write_delta_net,
    "granitehybrid": _write_granite,
    "falcon-h1": _write_falcon_h1,
    "nemotron_h": _write_nemotron_h,
    "nemotron_h_moe": _write_nemotron_h,
    "mamba2": _write_mamba_alone,
    "mamba": _write_mamba_alone,
    "jamba": _write_jamba,
}
