"""Config of the model in a GGUF file: read by transformers, or by tables here where layers are recurrent."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from kvchat.engine.models.checkpoints.gguf_file import INSTEAD, GgufFile, expanded, shape
from kvchat.errors import ModelUnreadable, UnsupportedModel

_ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class _Layout:
    """How an architecture's metadata becomes a config.

    Args:
        model_type: of transformers.
        fields: names in the config, and keys of the metadata; a key with `?` may be missing; the first of
            several between `|` that is there counts.
        derive: everything that has to be computed; what it says counts.
    """

    model_type: str
    fields: dict[str, str]
    derive: Callable[[GgufFile], dict[str, Any]]


def read_config(file: GgufFile) -> Any:
    """Return the config of a file's model, with the dtype of what is not quantized.

    Raises:
        ModelUnreadable: values are missing or make no config.
        UnsupportedModel: its rotary embedding is not known.
    """
    try:
        layout = RECURRENT.get(file.architecture)
        config = _config_of_attention(file) if layout is None else _config(file, layout)
    except UnsupportedModel:
        raise
    except Exception as error:  # whatever a damaged file makes the library raise
        raise ModelUnreadable(f"{file.path} cannot be read: {type(error).__name__}: {error}") from error
    if (factors := file.tensors().get(_ROPE_FACTORS)) is not None:
        _scale_rope(config, expanded(factors))
    elif file.own("rope.scaling.type") not in (None, "none"):
        raise UnsupportedModel(
            f"{file.path} scales its rotary embedding in a way that is not read. {INSTEAD}"
        )
    config.dtype = _dtype(file)
    return config


def _config_of_attention(file: GgufFile) -> Any:
    config = transformers.AutoConfig.from_pretrained(
        file.path.parent, gguf_file=file.path.name, local_files_only=True, trust_remote_code=False
    )
    if (head_dim := file.own("attention.key_length")) is not None:
        config.head_dim = head_dim
    if hasattr(config, "norm_eps"):
        config.norm_eps = file.own("attention.layer_norm_rms_epsilon")
    return config


def _config(file: GgufFile, layout: _Layout) -> Any:
    tensors = file.tensors()
    fields = {name: _field(file, key) for name, key in layout.fields.items()}
    shared = {
        "model_type": layout.model_type,
        "num_hidden_layers": _num_layers(file),
        "vocab_size": shape(tensors["token_embd.weight"])[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": file.value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.value("tokenizer.ggml.padding_token_id"),
    }
    known = {name: value for name, value in fields.items() if value is not None}
    return transformers.AutoConfig.for_model(**shared | known | layout.derive(file))


def _field(file: GgufFile, key: str) -> Any:
    values = (file.own(name) for name in key.removesuffix("?").split("|"))
    value = next((value for value in values if value is not None), None)
    if value is None and not key.endswith("?"):
        raise ValueError(f"it does not say {key}")
    if not isinstance(value, list):
        return value
    sizes = set(value) - {0}  # of layers that have it
    if len(sizes) > 1:
        raise ValueError(f"{key} is not the same for all layers")
    return max(value)


def _num_layers(file: GgufFile) -> int:
    """Layers behind the last one, which predict further tokens, are no part of the model."""
    num_layers = int(file.own("block_count")) - (file.own("nextn_predict_layers") or 0)
    if not 0 < num_layers < len(file.reader.tensors):
        raise ValueError(f"it has {len(file.reader.tensors)} tensors for {num_layers} layers")
    return num_layers


def _delta_net(file: GgufFile) -> dict[str, Any]:
    num_layers = _num_layers(file)
    interval = file.own("full_attention_interval") or 4
    recurrent = file.own("attention.recurrent_layers") or [
        (layer + 1) % interval != 0 for layer in range(num_layers)
    ]
    kinds = ("full_attention", "linear_attention")
    return {
        "layer_types": [kinds[bool(recurrent[layer])] for layer in range(num_layers)],
        "linear_value_head_dim": file.own("ssm.inner_size") // file.own("ssm.time_step_rank"),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": file.own("rope.freq_base"),
            "partial_rotary_factor": file.own("rope.dimension_count") / file.own("attention.key_length"),
        },
    }


def _granite(file: GgufFile) -> dict[str, Any]:
    """Whether there is a rotary embedding is said where others say that one was trained longer."""
    heads = file.own("attention.head_count_kv")
    has_rope = file.own("rope.scaling.finetuned")
    return {
        "layer_types": ["full_attention" if num_heads else "linear_attention" for num_heads in heads],
        "num_local_experts": file.own("expert_count") or 0,
        "position_embedding_type": "rope" if has_rope is None or has_rope else None,
        "rope_parameters": {"rope_type": "default", "rope_theta": file.own("rope.freq_base") or 10000.0},
        "mamba_expand": file.own("ssm.inner_size") // file.own("embedding_length"),
        "mamba_d_head": file.own("ssm.inner_size") // file.own("ssm.time_step_rank"),
        "mamba_conv_bias": _has(file, "ssm_conv1d.bias"),
    }


def _falcon_h1(file: GgufFile) -> dict[str, Any]:
    """The converter multiplies weights by the config's multipliers; those of transformers stay 1."""
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": file.own("rope.freq_base")},
        "mamba_d_ssm": file.own("ssm.inner_size"),
        "mamba_d_head": file.own("ssm.inner_size") // file.own("ssm.time_step_rank"),
        "mamba_conv_bias": _has(file, "ssm_conv1d.bias"),
        "mamba_rms_norm": _has(file, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
    }


def _nemotron_h(file: GgufFile) -> dict[str, Any]:
    """A layer mixes tokens, by attention where it has heads, or is a feed-forward network."""
    heads, widths = file.own("attention.head_count_kv"), file.own("feed_forward_length")
    network = "moe" if file.architecture.endswith("_moe") else "mlp"
    return {
        "layers_block_type": [
            network if widths[layer] else "full_attention" if heads[layer] else "linear_attention"
            for layer in range(_num_layers(file))
        ],
        "mamba_head_dim": file.own("ssm.inner_size") // file.own("ssm.time_step_rank"),
        "use_conv_bias": _has(file, "ssm_conv1d.bias"),
    }


def _jamba(file: GgufFile) -> dict[str, Any]:
    heads = file.own("attention.head_count_kv")
    attention = [layer for layer, num_heads in enumerate(heads) if num_heads]
    routed = [layer for layer in range(len(heads)) if f"blk.{layer}.ffn_gate_inp.weight" in file.tensors()]
    return {
        **_every("attn_layer", attention, len(heads)),
        **_every("expert_layer", routed, len(heads)),
        "mamba_expand": file.own("ssm.inner_size") // file.own("embedding_length"),
        "mamba_conv_bias": _has(file, "ssm_conv1d.bias"),
    }


def _every(what: str, layers: list[int], num_layers: int) -> dict[str, int]:
    """Return the period of some layers and the first of them; both are behind the end if there are none."""
    offset = layers[0] if layers else num_layers
    period = layers[1] - offset if len(layers) > 1 else num_layers + 1
    if layers != list(range(offset, num_layers, period)) or offset >= period:
        raise ValueError(f"layers {layers} of {num_layers} have no period")
    return {f"{what}_period": period, f"{what}_offset": offset}


def _mamba(file: GgufFile) -> dict[str, Any]:
    """Falcon Mamba has Mamba's name, and norms without factors."""
    return {
        "model_type": "falcon_mamba" if file.own("ssm.dt_b_c_rms") else "mamba",
        "expand": file.own("ssm.inner_size") // file.own("embedding_length"),
        "use_conv_bias": _has(file, "ssm_conv1d.bias"),
    }


def _mamba2(file: GgufFile) -> dict[str, Any]:
    return {
        "expand": file.own("ssm.inner_size") // file.own("embedding_length"),
        "head_dim": file.own("ssm.inner_size") // file.own("ssm.time_step_rank"),
        "use_conv_bias": _has(file, "ssm_conv1d.bias"),
    }


def _has(file: GgufFile, tensor: str) -> bool:
    """Return whether a layer has a tensor."""
    return any(name.endswith(f".{tensor}") for name in file.tensors())


_ATTENTION = {
    "hidden_size": "embedding_length",
    "max_position_embeddings": "context_length",
    "intermediate_size": "feed_forward_length?",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_DELTA_NET = _ATTENTION | {
    "head_dim": "attention.key_length",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
}
_EXPERTS = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
_MAMBA2 = {
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_n_heads": "ssm.time_step_rank",
}
_NEMOTRON_H = {
    "hidden_size": "embedding_length",
    "max_position_embeddings": "context_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "layer_norm_epsilon": "attention.layer_norm_rms_epsilon|attention.layer_norm_epsilon",
    "conv_kernel": "ssm.conv_kernel",
    "ssm_state_size": "ssm.state_size",
    "n_groups": "ssm.group_count",
    "mamba_num_heads": "ssm.time_step_rank",
}
_NEMOTRON_H_EXPERTS = {
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "n_shared_experts": "expert_shared_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "moe_latent_size": "moe_latent_size?",
    "norm_topk_prob": "expert_weights_norm",
    "routed_scaling_factor": "expert_weights_scale",
    "n_group": "expert_group_count",
}
_MAMBA = {
    "hidden_size": "embedding_length",
    "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
    "conv_kernel": "ssm.conv_kernel",
    "state_size": "ssm.state_size",
}
_JAMBA = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_state": "ssm.state_size",
    "mamba_dt_rank": "ssm.time_step_rank",
}
_HEADS = {"num_heads": "ssm.time_step_rank", "n_groups": "ssm.group_count"}
_GRANITE = {
    "num_experts_per_tok": "expert_used_count?",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale?",
    "residual_multiplier": "residual_scale?",
    "logits_scaling": "logit_scale?",
}
RECURRENT = {
    "qwen35": _Layout("qwen3_5_text", _DELTA_NET, _delta_net),
    "qwen35moe": _Layout("qwen3_5_moe_text", _DELTA_NET | _EXPERTS, _delta_net),
    "qwen3next": _Layout("qwen3_next", _DELTA_NET | _EXPERTS, _delta_net),
    "granitehybrid": _Layout("granitemoehybrid", _ATTENTION | _MAMBA2 | _GRANITE, _granite),
    "nemotron_h": _Layout("nemotron_h", _NEMOTRON_H, _nemotron_h),
    "nemotron_h_moe": _Layout("nemotron_h", _NEMOTRON_H | _NEMOTRON_H_EXPERTS, _nemotron_h),
    "mamba": _Layout("mamba", _MAMBA | {"time_step_rank": "ssm.time_step_rank"}, _mamba),
    "jamba": _Layout("jamba", _ATTENTION | _JAMBA, _jamba),
    "mamba2": _Layout("mamba2", _MAMBA | _HEADS, _mamba2),
    "falcon-h1": _Layout(
        "falcon_h1", _ATTENTION | _MAMBA2 | {"head_dim": "attention.key_length"}, _falcon_h1
    ),
}
"""Architectures with recurrent layers, which transformers reads in part or not at all."""


def _scale_rope(config: Any, factors: Tensor) -> None:
    """Say in transformers' words that every frequency is divided by a factor of its own, at all lengths."""
    length = config.max_position_embeddings
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": config.rope_parameters["rope_theta"],
        "short_factor": factors.tolist(),
        "long_factor": factors.tolist(),
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": length,
    }


def _dtype(file: GgufFile) -> torch.dtype:
    """Return the dtype of everything that is not quantized: the file's own, bfloat16 beside codes."""
    kinds = {tensor.tensor_type.name for tensor in file.reader.tensors if len(tensor.shape) > 1}
    if kinds <= {"F32"}:
        return torch.float32
    return torch.float16 if kinds <= {"F16", "F32"} else torch.bfloat16
