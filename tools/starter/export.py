"""Writes a model directory that transformers and tokenizers load unmodified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from tools.starter.network import Shape
from tools.starter.tokenizer import CHAT_TEMPLATE, END_ID, PAD_ID, SPECIAL_TOKENS

MAX_POSITIONS = 8192


def model_config(shape: Shape) -> dict[str, Any]:
    """Return config.json of the network as Qwen3ForCausalLM."""
    kinds = [
        "sliding_attention" if shape.is_sliding(layer) else "full_attention"
        for layer in range(shape.num_layers)
    ]
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "float32",
        "eos_token_id": END_ID,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "layer_types": kinds,
        "max_position_embeddings": MAX_POSITIONS,
        "max_window_layers": 0,
        "model_type": "qwen3",
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "pad_token_id": PAD_ID,
        "rms_norm_eps": shape.norm_eps,
        "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
        "sliding_window": shape.window,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": True,
        "vocab_size": shape.vocabulary,
    }


def tokenizer_config() -> dict[str, Any]:
    """Return tokenizer_config.json."""
    return {
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL_TOKENS[END_ID],
        "extra_special_tokens": list(SPECIAL_TOKENS[2:]),
        "model_max_length": MAX_POSITIONS,
        "pad_token": SPECIAL_TOKENS[PAD_ID],
        "tokenizer_class": "TokenizersBackend",
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def export_model(directory: Path, shape: Shape, parameters: dict[str, Tensor], tokenizer: Tokenizer) -> None:
    """Write config, weights (float32), tokenizer and chat template into `directory`, over what is there."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().to(torch.float32).contiguous() for name, tensor in parameters.items()}
    partial = directory / "model.safetensors.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.replace(directory / "model.safetensors")
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(directory / "config.json", model_config(shape))
    generation = {"do_sample": False, "eos_token_id": END_ID, "pad_token_id": PAD_ID, "use_cache": True}
    _write_json(directory / "generation_config.json", generation)
    _write_json(directory / "tokenizer_config.json", tokenizer_config())
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
