"""Tiny models as GGUF files, written with llama.cpp's own library."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quants
from gguf.tensor_mapping import get_tensor_name_map

from kvchat.engine.models.checkpoints.gguf_to_hf import _ARCHITECTURES

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def tiny(kind: str, **changes: Any) -> Any:
    """Return a tiny random model of a kind, with biases and norms that matter."""
    torch.manual_seed(0)
    classes = {
        "llama": transformers.LlamaConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
        "phi3": transformers.Phi3Config,
        "gemma2": transformers.Gemma2Config,
        "gemma3": transformers.Gemma3TextConfig,
        "lfm2": transformers.Lfm2Config,
    }
    sizes = {
        "vocab_size": 128,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": 1,
    }
    if kind == "lfm2":
        sizes |= {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
        sizes |= {"norm_eps": 1e-2}
        del sizes["head_dim"]
    model = transformers.AutoModelForCausalLM.from_config(
        classes[kind](**sizes | changes), dtype=torch.float32
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def write_gguf(
    model: Any,
    path: Path,
    kind: str,
    quantized: GGMLQuantizationType,
    factors: list[float] | None = None,
) -> dict[str, torch.Tensor]:
    """Write a model, and return its weights as whoever reads the file must find them, by their names here."""
    writer = GGUFWriter(path, kind)
    _write_header(writer, model.config)
    names = get_tensor_name_map(_ARCHITECTURES[kind], model.config.num_hidden_layers)
    expected = {}
    for name, parameter in model.named_parameters():
        stem, _, last = name.rpartition(".")
        there, back = _as_llama_cpp(kind, name, model.config)
        numbers = there(parameter.detach().numpy())
        if numbers.ndim > 1 and "conv.conv" not in name:  # three numbers of a channel are no block
            data = quants.quantize(numbers, quantized)
            writer.add_tensor(f"{names.get_name(stem)}.{last}", data, raw_dtype=quantized)
            numbers = dequantize(data, quantized)
        else:
            writer.add_tensor(f"{names.get_name(stem)}.{last}", numbers)
        expected[name] = torch.from_numpy(back(numbers).copy())
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def _as_llama_cpp(
    kind: str, name: str, config: Any
) -> tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]:
    """Return how llama.cpp's converter changes a parameter, and the way back (convert_hf_to_gguf.py)."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = next((heads[part] for part in heads if f".{part}." in name), None)
    if kind == "llama" and count is not None:

        def turn(first: int, second: int) -> Callable[[np.ndarray], np.ndarray]:
            return lambda x: x.reshape(count, first, second, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)

        return turn(2, config.head_dim // 2), turn(config.head_dim // 2, 2)
    if name.endswith("conv.conv.weight"):
        return lambda x: x[:, 0], lambda x: x[:, None]
    if kind.startswith("gemma") and "norm" in name:
        return lambda x: x + 1, lambda x: x - 1
    return lambda x: x, lambda x: x


def _write_header(writer: GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    if config.model_type == "lfm2":
        heads = [config.num_key_value_heads * (kind != "conv") for kind in config.layer_types]
        writer.add_head_count_kv(heads)
        writer.add_shortconv_l_cache(config.conv_L_cache)
        writer.add_layer_norm_rms_eps(config.norm_eps)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    theta = config.rope_parameters
    writer.add_rope_freq_base(theta.get("rope_theta") or theta["full_attention"]["rope_theta"])
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    writer.add_vocab_size(config.vocab_size)
    pieces = ["ab", "cd", *ALPHABET, *ALPHABET.upper(), *"0123456789.,!?'Ġ"]
    tokens = ["<|pad|>", "<|end|>", *pieces]
    tokens += [f"<|{number}|>" for number in range(config.vocab_size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges(["a b", "c d"])
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}")
